"""A node is alive while its key is in the store; the web process renews it on the agent's behalf."""

from typing import Final
from uuid import UUID

from gpupool.leases.base import Condition, Conflict, IsAbsent, LeaseNotFound, LeaseStore, Put, Snapshot

NODES_PREFIX: Final = "/gpu/nodes/"
_SUFFIX: Final = "/health"


def health_key(node_id: UUID) -> str:
    return f"{NODES_PREFIX}{node_id}{_SUFFIX}"


class NodeLiveness:
    """Keeps one node's key while its stream is heard."""

    def __init__(self, store: LeaseStore, node_id: UUID, *, ttl_seconds: float) -> None:
        self._store = store
        self._key = health_key(node_id)
        self._ttl_seconds = ttl_seconds
        self._lease_id: int | None = None

    async def heard(self) -> None:
        """The node spoke just now: its key lives the whole time again. Raises StoreUnavailable."""
        conditions: list[Condition] = []
        if self._lease_id is not None:
            try:
                await self._store.keep_alive(self._lease_id)
            except LeaseNotFound:
                # Silent for too long. If a newer stream of the node has the key by now it keeps it: taken over,
                # the key would end with this stream, and the newer one would renew a lease that nothing hangs on.
                conditions = [IsAbsent(self._key)]
            else:
                return
        grant = await self._store.grant(self._ttl_seconds)
        outcome = await self._store.transact(conditions, [Put(self._key, b"heard", grant.lease_id)])
        if isinstance(outcome, Conflict):
            await self._store.revoke(grant.lease_id)
        else:
            self._lease_id = grant.lease_id


async def list_live_nodes(store: LeaseStore) -> frozenset[UUID]:
    """Nodes whose key is there now. Raises StoreUnavailable."""
    return live_nodes_of(await store.range(NODES_PREFIX))


def live_nodes_of(snapshot: Snapshot) -> frozenset[UUID]:
    """Nodes whose key is in what was read."""
    found = (
        id_in(entry.key.removesuffix(_SUFFIX), NODES_PREFIX)
        for entry in snapshot.entries
        if entry.key.startswith(NODES_PREFIX) and entry.key.endswith(_SUFFIX)
    )
    return frozenset(node_id for node_id in found if node_id is not None)


def id_in(key: str, prefix: str) -> UUID | None:
    """The id after the prefix; None in a key that is not of ours: a store may be shared."""
    try:
        found = UUID(key.removeprefix(prefix))
    except ValueError:
        return None
    return found if key == f"{prefix}{found}" else None

"""What the pool asks of a lease store: compare-and-set, times to live, watches. PostgreSQL now; etcd fits the same.

Revisions are one counter over the whole store. A key's `create_revision` and `mod_revision` are what
transactions compare, and what serves as a fencing token.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreUnavailable(Exception):
    """The store cannot be asked now. Whether a write that was under way happened is not known."""


class LeaseNotFound(Exception):
    """The lease has expired or was revoked; what hung on it is gone."""


class Compacted(Exception):
    """Events that far back are gone: read the range again and watch from its revision."""

    def __init__(self, compacted_revision: int) -> None:
        self.compacted_revision = compacted_revision
        super().__init__(f"events up to revision {compacted_revision} were compacted")


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int  # writes since it was created
    lease_id: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Entries as they were together at `revision`; watch from there to miss nothing."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One change; `value` is None for a deletion."""

    revision: int
    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class IsAbsent:
    """Holds while the key does not exist (create revision 0)."""

    key: str


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Holds while the key is the one that was created at `revision`."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """Holds while the key was last written at `revision`."""

    key: str
    revision: int


Condition = IsAbsent | CreatedAt | ModifiedAt


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value; with `lease_id` the key goes when that lease does."""

    key: str
    value: bytes
    lease_id: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """All conditions held and all operations were done, at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A condition did not hold; nothing was done. `revision` is the store's."""

    revision: int


Outcome = Committed | Conflict


@dataclass(frozen=True, slots=True)
class Grant:
    """A time to live; the store may give more seconds than were asked for."""

    lease_id: int
    ttl_seconds: float


class LeaseStore(Protocol):
    """Every method raises StoreUnavailable when the store does not answer within its deadline, network or none.

    Keys begin with a slash and have at most 500 characters (ValueError otherwise).
    """

    async def get(self, key: str) -> Entry | None:
        """The key's entry, None when it does not exist."""

    async def range(self, prefix: str) -> Snapshot:
        """All entries whose key begins with `prefix`, by key."""

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """Do all operations if all conditions hold, else none. One revision for all of them.

        Raises LeaseNotFound when an operation names a lease that is gone; ValueError when two
        operations name the same key.
        """

    async def grant(self, ttl_seconds: float) -> Grant:
        """A new lease of at least `ttl_seconds`."""

    async def keep_alive(self, lease_id: int) -> Grant:
        """The lease lives its whole time again from now. Raises LeaseNotFound."""

    async def revoke(self, lease_id: int) -> None:
        """End the lease and delete its keys. Nothing happens when it is gone already."""

    def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Event]:
        """Every change after a revision, in order, for ever. Raises Compacted: read the range again."""

    async def compact(self, revision: int) -> None:
        """Drop events up to `revision`."""

    async def close(self) -> None:
        """Let go of connections."""


def check_key(key: str) -> str:
    """Raises ValueError for a key that not every store takes."""
    if not key.startswith("/") or len(key) > 500 or "\x00" in key:
        raise ValueError(f"{key!r} is no key: it begins with a slash and has at most 500 characters")
    return key

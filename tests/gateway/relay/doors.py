"""A pipeline over a snapshot that a test writes, and what is asked of it."""

import hashlib
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from core.clock import ManualClock, SystemClock
from core.errors import GatehouseError
from core.ids import uuid7
from gateway.authentication import MachineAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.follower import Follower
from gateway.relay.picker import Balancer
from gateway.relay.pipeline import Pipeline
from gateway.relay.plan import (
    Api,
    Decision,
    Endpoint,
    Rejected,
    SlimRequest,
)
from gateway.relay.reserve import Reserver
from gateway.relay.rows import ENDPOINTS, GRANTS, KEYS, MODELS, EndpointRow, KeyRow, ModelRow, TenantRow
from gateway.relay.settle import Settler
from gateway.relay.snapshot import Snapshot
from gateway.relay.spool import Spool
from tenants.policies.rbac import GrantRule
from tests.doubles.limiter import NotingLimiter
from tests.gateway.relay.following import FakeSource

NOW = 1_800_000_000.0
TENANT, KEY = uuid4(), uuid4()
BODY = b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}'


def rule(pattern: str, *, allow: bool = True, expires_at: float | None = None, actions: str = "infer") -> GrantRule:
    return GrantRule("tenant", str(TENANT), pattern, frozenset({actions}), allow, expires_at)


class Door:
    """A pipeline over a snapshot that a test writes."""

    def __init__(self, folder: Path, *, spool_bytes: int = 1 << 20) -> None:
        self.snapshot = Snapshot()
        self.clock = ManualClock()
        self.source = FakeSource()
        self.follower = Follower(self.source, self.snapshot, clock=self.clock, poll_seconds=3600, stale_seconds=60)
        self.follower._read_at = 0.0
        self.snapshot.applied = {KEYS: 0, GRANTS: 0, MODELS: 0, ENDPOINTS: 0}
        self.authentication = MachineAuthentication(self.snapshot, lambda: NOW)
        self.permission = InferencePermission(self.snapshot, lambda: NOW)
        self.limiter = NotingLimiter()
        self.reserver = Reserver(self.snapshot, self.limiter, now=lambda: NOW)
        self.spool = Spool.create(folder, uuid7(), cap_bytes=spool_bytes)
        self.settler = Settler(self.spool, door="relay", clock=SystemClock(), on_row=lambda: None)
        self.pipeline = Pipeline(
            door="relay",
            follower=self.follower,
            authentication=self.authentication,
            permission=self.permission,
            reserver=self.reserver,
            balancer=Balancer(self.snapshot, clock=self.clock, random=lambda: 0.0),
            tickets=self.settler,
        )
        self.tenant()
        self.key("good")
        self.model("tiny", ready=True)

    def tenant(self, *rules: GrantRule, active: bool = True) -> None:
        self.snapshot.apply(GRANTS, [], [TenantRow(TENANT, "acme", active, rules or (rule("*"),))])

    def key(self, secret: str, **more: Any) -> KeyRow:
        values: dict[str, Any] = {
            "id": uuid4(),
            "digest": hashlib.sha256(secret.encode()).hexdigest(),
            "tenant_id": TENANT,
            "scopes": frozenset({"infer"}),
            "allowed_models": (),
            "rpm_limit": None,
            "expires_at": None,
            "revoked": False,
        }
        row = KeyRow(**{**values, **more})
        self.snapshot.add_resolved(row.digest, row)
        return row

    def model(
        self,
        name: str,
        *,
        ready: bool = False,
        tenant_id: UUID | None = None,
        aliases: tuple[str, ...] = (),
        only: frozenset[UUID] = frozenset(),
        simulated: bool = False,
    ) -> None:
        row = ModelRow(uuid4(), name, tenant_id, 1, aliases=aliases, only_tenants=only, simulated=simulated)
        self.snapshot.apply(MODELS, [], [row])
        if ready:
            endpoint = Endpoint(uuid4(), uuid4(), "vllm", "127.0.0.1", 1, "", "served")
            self.snapshot.apply(ENDPOINTS, [], [EndpointRow(endpoint.instance_id, row.id, endpoint)])

    def request(
        self, secret: str | None = "good", body: bytes = BODY, path: str = "/v1/chat/completions"
    ) -> SlimRequest:
        headers = [] if secret is None else [(b"authorization", b"Bearer " + secret.encode())]
        return SlimRequest(uuid7(), Api.CHAT, path, headers, body, 0.0)

    async def prepare(self, secret: str | None = "good", body: bytes = BODY) -> Decision:
        return await self.pipeline.prepare(self.request(secret, body))

    async def refusal(self, secret: str | None = "good", body: bytes = BODY) -> GatehouseError:
        decision = await self.prepare(secret, body)
        assert isinstance(decision, Rejected), decision
        return decision.error

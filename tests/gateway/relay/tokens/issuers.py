"""Rows of issuers, and a place that keys are fetched from, for the tests beside this file."""

import threading
from collections.abc import Callable
from uuid import UUID, uuid4

from core.outbound import Answer, OutboundLimits, Unreachable
from gateway.relay.rows import GRANTS, ISSUERS, IssuerRow, TenantRow
from gateway.relay.snapshot import Snapshot
from tests.doubles.issuer import AUDIENCE, TokenMaker

TENANT = uuid4()
NAME = "https://issuer.example"


def issuer_row(  # every field of the row that some test sets
    maker: TokenMaker | None = None,
    *,
    row_id: UUID | None = None,
    issuer: str = NAME,
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA"),
    jwks_url: str = "",
    leeway_seconds: float = 30.0,
    tenant_id: UUID | None = TENANT,
    tenant_claim: str = "tid",
    role_claim: str = "roles",
    role_scopes: tuple[tuple[str, tuple[str, ...]], ...] = (),
    default_scopes: tuple[str, ...] = (),
) -> IssuerRow:
    """With a maker its keys are pinned, else they come from the address."""
    return IssuerRow(
        id=row_id or uuid4(),
        issuer=maker.issuer if maker else issuer,
        audiences=(AUDIENCE,),
        algorithms=algorithms,
        jwks_url=jwks_url,
        pinned_jwks=maker.key_set() if maker else "",
        allow_private=False,
        leeway_seconds=leeway_seconds,
        tenant_id=tenant_id,
        tenant_claim=tenant_claim,
        scope_claim="scope",
        role_claim=role_claim,
        role_scopes=role_scopes,
        default_scopes=default_scopes,
    )


def snapshot_of(*issuers: IssuerRow) -> Snapshot:
    """A snapshot with the tenant acme and these issuers."""
    snapshot = Snapshot()
    snapshot.apply(GRANTS, [], [TenantRow(TENANT, "acme", True, ())], through=1)
    snapshot.apply(ISSUERS, [], issuers, through=1)
    return snapshot


class Address:
    """Where keys are fetched from: gives `body`, or fails, or holds every fetch until told."""

    def __init__(self, body: Callable[[], str]) -> None:
        self.body = body
        self.asked = 0
        self.away = False
        self.status = 200
        self.go = threading.Event()
        self.go.set()

    def fetch(self, url: str, *, limits: OutboundLimits | None = None) -> Answer:
        self.asked += 1
        self.go.wait(10)
        if self.away:
            raise Unreachable("No connection.")
        return Answer(self.status, {}, self.body().encode())

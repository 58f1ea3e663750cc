"""The snapshot's rows, and how they are read: plain structs, so that the relay needs no database."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

import msgspec

from gateway.relay.plan import Endpoint
from tenants.policies.pricing import PriceTag
from tenants.policies.rbac import GrantRule

KEYS: Final = "keys"
GRANTS: Final = "grants"
LIMITS: Final = "limits"
PRICES: Final = "prices"
ISSUERS: Final = "issuers"
MODELS: Final = "models"
ENDPOINTS: Final = "endpoints"
SECTIONS: Final = (KEYS, GRANTS, ISSUERS, LIMITS, PRICES, MODELS, ENDPOINTS)
"""The sections that a snapshot follows, by the names that writers bump (core.epochs.Section).

In the order in which they are applied: what restricts comes before what opens, so that a new route is never served
without the limits that were written before it.
"""


class KeyRow(msgspec.Struct, frozen=True, gc=False):  # of a hundred thousand, none is worth a look of the collector
    """An API key. `digest` is the hex SHA-256 of its secret; times are seconds since the epoch."""

    id: UUID
    digest: str
    tenant_id: UUID
    scopes: frozenset[str]
    allowed_models: tuple[str, ...]
    rpm_limit: int | None
    expires_at: float | None
    revoked: bool
    keep_alive: bool = True  # comments may be sent while a stream has nothing to say
    lineage: UUID | None = None  # whose limits it has, where not its own: see tenants.models.ApiKey
    store_conversations: bool = False


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant with its grants and those of its keys; a change of any of them is a change of the tenant."""

    id: UUID
    slug: str
    active: bool
    rules: tuple[GrantRule, ...]
    response_retention_days: int = 30
    conversation_retention_days: int = 30
    parent_id: UUID | None = None
    time_zone: str = "UTC"
    sla_tier: str = "bronze"


class LimitRow(msgspec.Struct, frozen=True):
    """A limit; see tenants.models.Limit. Times are seconds since the epoch.

    `key_id` is the first key's of its lineage: keys that were rotated into one another share their limits.
    `time_zone` is the tenant's, of calendar windows. Money is in millionths of the currency.
    """

    id: UUID
    tenant_id: UUID | None
    subtree: bool
    key_id: UUID | None
    model: str
    metric: str
    window: str
    amount: int
    refill_per_second: float | None
    boost_amount: int | None
    boost_until: float | None
    counts_from: float
    time_zone: str
    tenant_slug: str = ""

    def amount_at(self, now: float) -> int:
        """The amount in force; a boost counts until it ends."""
        if self.boost_amount is not None and self.boost_until is not None and now < self.boost_until:
            return self.boost_amount
        return self.amount


class PriceRow(msgspec.Struct, frozen=True):
    """Prices of a model or one of its versions from `effective_from` (seconds since the epoch) on."""

    id: UUID
    model: str
    version_id: UUID | None
    effective_from: float
    tag: PriceTag


class IssuerRow(msgspec.Struct, frozen=True):
    """Who may sign tokens, and how their claims are read; see tenants.models.TokenIssuer."""

    id: UUID
    issuer: str  # the claim `iss`
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    jwks_url: str  # empty: the pinned keys only
    pinned_jwks: str  # JSON of a key set, empty without
    allow_private: bool  # the URL may point to a private address
    leeway_seconds: float
    tenant_id: UUID | None  # of all its tokens; None: the tenant claim says it
    tenant_claim: str
    scope_claim: str
    role_claim: str
    role_scopes: tuple[tuple[str, tuple[str, ...]], ...]  # role -> actions
    default_scopes: tuple[str, ...]


class ModelRow(msgspec.Struct, frozen=True):
    """A name at the door. `tenant_id` makes it private; `created` is seconds since the epoch."""

    id: UUID
    name: str
    tenant_id: UUID | None
    created: int
    context_tokens: int | None = None  # prompt and answer together, the smallest of its versions; None: unknown
    longest_context_tokens: int | None = None  # the largest; None where that of any version is unknown
    aliases: tuple[str, ...] = ()  # other names at the door; everything that is counted goes by `name`
    own_contexts: tuple[tuple[UUID, int | None, int | None], ...] = ()  # both, of tenants with versions of their own
    only_tenants: frozenset[UUID] = frozenset()  # whose own versions alone serve it; empty: it serves everybody
    simulated: bool = False  # its answers may be made up


class EndpointRow(msgspec.Struct, frozen=True):
    """A ready instance, and the model it serves."""

    id: UUID
    model_id: UUID
    endpoint: Endpoint


Row = KeyRow | TenantRow | LimitRow | PriceRow | IssuerRow | ModelRow | EndpointRow


class Loaded(msgspec.Struct, frozen=True):
    """Rows of one section, and the section's epoch in the same database snapshot."""

    epoch: int
    rows: Sequence[Row]


class LoadedKeys(msgspec.Struct, frozen=True):
    """Keys by digest (missing ones are not there), and the section's epoch in the same database snapshot."""

    epoch: int
    rows: Sequence[KeyRow]


class ChangedRow(msgspec.Struct, frozen=True):
    epoch: int
    object_id: UUID


class SourceUnavailable(Exception):
    """The database cannot be read now; asking again later may succeed."""


class SnapshotSource(Protocol):
    """Reads of the database. Blocking: all are called on one thread of their own.

    Every method raises SourceUnavailable when the database is away, and connects anew when next called.
    """

    def read_epochs(self) -> Mapping[str, int]:
        """The newest epoch of every section that was ever bumped."""

    def read_changes(self, section: str, *, after: int, limit: int) -> Sequence[ChangedRow] | None:
        """Changes after an epoch, oldest first; None when they were pruned."""

    def load_section(self, section: str) -> Loaded:
        """All rows of a section (for keys: none, they are read one by one)."""

    def load_objects(self, section: str, ids: Sequence[UUID]) -> Loaded:
        """Rows of the changed objects; what was deleted, or no longer belongs into a snapshot, is not there."""

    def find_keys(self, digests: Sequence[str]) -> LoadedKeys:
        """Keys by the digest of their secret."""

    def read_mark(self, process_id: UUID) -> int:
        """How far a process's usage is in the ledger without a gap; 0 when nothing is."""

    def close(self) -> None:
        """Give up the connection of the calling thread."""

    def interrupt(self) -> None:
        """From any thread: make a read that hangs fail with SourceUnavailable."""

"""Who a machine request is made by: plain data, so that the relay can hold it without a database."""

from typing import Final
from uuid import UUID, uuid5

import msgspec

from tenants.policies.tiers import TrafficClass

_SUBJECTS: Final = UUID("5d0c4b4e-6f1b-5b7e-9a52-6f7f2f0d8a11")


class Principal(msgspec.Struct, frozen=True):
    """An authenticated API key, or the subject of a token. DRF sees it as `request.user`."""

    tenant_id: UUID
    tenant_slug: str
    key_id: UUID | None  # None: a token's subject
    scopes: frozenset[str]  # actions the key itself allows: infer, embed, ...
    allowed_models: tuple[str, ...]  # fnmatch patterns; empty: whatever the tenant is granted
    rpm_limit: int | None  # requests a minute; None: no limit of its own
    subject_id: UUID | None = None  # of a token; see `subject_uuid`
    expires_at: float | None = None  # seconds since the epoch; of a token, its issuer's leeway included
    lineage: UUID | None = None  # of a key that others were rotated into, or that was: the first one's id
    keep_alive: bool = True  # comments may be sent while a stream has nothing to say
    store_conversations: bool = False
    traffic_class: TrafficClass = TrafficClass.STANDARD  # of its requests, where the route says no other

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def pk(self) -> UUID:
        return self.key_id or self.subject_id or self.tenant_id

    @property
    def limits_id(self) -> UUID | None:
        """Whose own limits hold: a key and those it was rotated into share one budget. None for a token."""
        return self.lineage or self.key_id


def subject_uuid(issuer: str, subject: str) -> UUID:
    """How ledger, grants and logs name a token's subject, which itself may be a person's address."""
    return uuid5(_SUBJECTS, f"{issuer}\n{subject}")

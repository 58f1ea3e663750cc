"""Who a machine request is made by: plain data, so that the relay can hold it without a database."""

from uuid import UUID

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """An authenticated API key. DRF sees it as `request.user`."""

    tenant_id: UUID
    tenant_slug: str
    key_id: UUID
    scopes: frozenset[str]  # actions the key itself allows: infer, embed, ...
    allowed_models: tuple[str, ...]  # fnmatch patterns; empty: whatever the tenant is granted
    rpm_limit: int | None  # requests a minute; None: no limit of its own

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def pk(self) -> UUID:
        return self.key_id

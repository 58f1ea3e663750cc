"""What a principal may do. One object for both doors; only looks into the snapshot."""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from rest_framework.permissions import BasePermission

from core.errors import ModelNotFound, PermissionDenied, TenantSuspended
from gateway.relay.actions import INFER, action_of
from gateway.relay.plan import Api
from gateway.relay.rows import ModelRow
from gateway.relay.snapshot import Snapshot
from tenants.policies.rbac import is_allowed
from tenants.principal import Principal

_ALLOWED_CAP: Final = 10_000


class InferencePermission(BasePermission):
    """May this key infer at all, and with this model? `now`: seconds since the epoch."""

    def __init__(self, snapshot: Snapshot, now: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._now = now
        self._allowed: dict[tuple[UUID, str, str], ModelRow] = {}  # what no passing of time takes back
        self._allowed_at = -1

    def has_permission(self, request: Any, view: Any = None) -> bool:
        """True, or raises TenantSuspended or PermissionDenied. `request.user` is a Principal."""
        self.check_principal(request.user, action_of(getattr(view, "api", Api.CHAT)))
        return True

    def has_object_permission(self, request: Any, view: Any, obj: str) -> bool:
        """True, or raises ModelNotFound. `obj` is the model's name."""
        self.check_model(request.user, obj, action_of(getattr(view, "api", Api.CHAT)))
        return True

    def check_principal(self, principal: Principal, action: str = INFER) -> None:
        """Raises TenantSuspended, or PermissionDenied for a key without the scope."""
        tenant = self._snapshot.tenant(principal.tenant_id)
        if tenant is None or not tenant.active:
            raise TenantSuspended()
        if action not in principal.scopes:
            raise PermissionDenied(f"This key may not {action}: it lacks the scope '{action}'.")

    def check_model(self, principal: Principal, name: str, action: str = INFER) -> ModelRow:
        """The model. Raises ModelNotFound, told alike for a model that is unknown and one without a grant."""
        if self._allowed_at != self._snapshot.version:
            self._allowed.clear()
            self._allowed_at = self._snapshot.version
        known = self._allowed.get((principal.key_id, name, action))
        if known is not None:
            return known
        row = self._snapshot.model(name)
        if row is None or not self._may(principal, row, action):
            raise ModelNotFound(param="model")
        tenant = self._snapshot.tenant(principal.tenant_id)
        if tenant is not None and all(rule.expires_at is None for rule in tenant.rules):
            if len(self._allowed) >= _ALLOWED_CAP:
                self._allowed.clear()
            self._allowed[principal.key_id, name, action] = row
        return row

    def list_models(self, principal: Principal) -> list[ModelRow]:
        """The models that the principal may infer with, by name."""
        return [row for row in self._snapshot.models() if self._may(principal, row, INFER)]

    def _may(self, principal: Principal, row: ModelRow, action: str) -> bool:
        if row.tenant_id is not None and row.tenant_id != principal.tenant_id:
            return False
        tenant = self._snapshot.tenant(principal.tenant_id)
        return tenant is not None and is_allowed(
            tenant.rules,
            tenant_id=str(principal.tenant_id),
            key_id=str(principal.key_id),
            scopes=principal.scopes,
            allowed_models=principal.allowed_models,
            model=row.name,
            action=action,
            now=self._now(),
        )

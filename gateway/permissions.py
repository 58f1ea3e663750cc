"""What a principal may do. One object for both doors; only looks into the snapshot."""

from collections.abc import Callable
from typing import Any, Final

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
        # As of a version of the snapshot, what no passing of time takes back. By identity: authentication hands out
        # the same principal as long as nothing changes, and to hash one costs more than to look it up.
        self._sound: dict[tuple[int, str], Principal] = {}
        self._allowed: dict[tuple[int, str, str], tuple[Principal, ModelRow]] = {}
        self._known_at = -1

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
        self._forget_what_changed()
        if self._sound.get((id(principal), action)) is principal:
            return
        tenant = self._snapshot.tenant(principal.tenant_id)
        if tenant is None or not tenant.active:
            raise TenantSuspended()
        if action not in principal.scopes:
            raise PermissionDenied(f"This key may not {action}: it lacks the scope '{action}'.")
        if len(self._sound) >= _ALLOWED_CAP:
            self._sound.clear()
        self._sound[id(principal), action] = principal

    def check_model(self, principal: Principal, name: str, action: str = INFER) -> ModelRow:
        """The model of that name or alias. Raises ModelNotFound, told alike for what is unknown and without a grant.

        Grants, keys and limits go by the model's own name.
        """
        self._forget_what_changed()
        known = self._allowed.get((id(principal), name, action))
        if known is not None and known[0] is principal:
            return known[1]
        row = self._snapshot.model(name)
        if row is None or not self._may(principal, row, action):
            raise ModelNotFound(param="model")
        tenant = self._snapshot.tenant(principal.tenant_id)
        if tenant is not None and all(rule.expires_at is None for rule in tenant.rules):
            if len(self._allowed) >= _ALLOWED_CAP:
                self._allowed.clear()
            self._allowed[id(principal), name, action] = (principal, row)
        return row

    def list_models(self, principal: Principal) -> list[ModelRow]:
        """The models that the principal may infer with, by name."""
        return [row for row in self._snapshot.models() if self._may(principal, row, INFER)]

    def _forget_what_changed(self) -> None:
        if self._known_at != self._snapshot.version:
            self._allowed.clear()
            self._sound.clear()
            self._known_at = self._snapshot.version

    def _may(self, principal: Principal, row: ModelRow, action: str) -> bool:
        if row.tenant_id is not None and row.tenant_id != principal.tenant_id:
            return False
        if row.only_tenants and principal.tenant_id not in row.only_tenants:
            return False
        tenant = self._snapshot.tenant(principal.tenant_id)
        return tenant is not None and is_allowed(
            tenant.rules,
            tenant_id=str(principal.tenant_id),
            key_id=str(principal.key_id or ""),
            subject_id=str(principal.subject_id or ""),
            scopes=principal.scopes,
            allowed_models=principal.allowed_models,
            model=row.name,
            action=action,
            now=self._now(),
        )

"""The channel `audit`: who changed what, a second after it was done."""

from datetime import datetime
from typing import Final

from dashboard.live.base import TENANT_SCOPE, Encoder, Viewer, tenant_of
from dashboard.live.encoders import Tail, TailEncoder
from dashboard.live.feeds.scopes import tenant_or_all
from dashboard.reads.audit import audit_rows
from tenants.models import AuditEvent
from tenants.policies.roles import Object

OF_SCOPE: Final = "of:"
NEWEST: Final = 50
"""Rows that whoever begins to watch gets, and the most that a second may bring without a gap."""


class AuditFeed:
    """Scope: none (the whole platform), `of:SLUG` (one tenant's, for the platform's people), or `tenant:SLUG`.

    A tenant's own scope names nobody but its members: who else acts there is an id to them, as over the control API.
    """

    name: str = "audit"
    period_seconds: float = 1.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the log of the platform, or of the tenant."""
        if scope == "" or scope.startswith(OF_SCOPE):
            return viewer.may_view(Object.PLATFORM_AUDIT)
        slug = tenant_of(scope)
        return slug is not None and viewer.may_view(Object.TENANT_AUDIT, tenant=slug)

    def read(self, scope: str, *, now: datetime) -> object:
        """Five queries at most. Raises Gone for a tenant that is gone."""
        rows = AuditEvent.objects.order_by("-pk")
        own = tenant_of(scope) is not None
        tenant = tenant_or_all(scope if own else scope.replace(OF_SCOPE, TENANT_SCOPE, 1))
        if tenant is not None:
            rows = rows.filter(tenant_id=tenant.pk)
        told = audit_rows(rows[:NEWEST], members_of=tenant if own else None)
        return Tail([(row.id, row) for row in reversed(told)])

    def encoder(self) -> Encoder:
        """What came since; rows never change."""
        return TailEncoder("audit", "audit.v1", most=NEWEST)

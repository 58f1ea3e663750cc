"""Who may do what, and what it cost."""

from tenants.models.access import AccessToken, ApiKey, Grant, GrantEffect, PrincipalKind
from tenants.models.audit import AuditEvent
from tenants.models.ledger import DeadLetter, LedgerMark, PlatformMinute, UsageMinute, UsageRecord
from tenants.models.tenant import Membership, PlatformRole, SlaTier, Tenant, TenantRole, TenantState, User

__all__ = [
    "AccessToken",
    "ApiKey",
    "AuditEvent",
    "DeadLetter",
    "Grant",
    "GrantEffect",
    "LedgerMark",
    "Membership",
    "PlatformMinute",
    "PlatformRole",
    "PrincipalKind",
    "SlaTier",
    "Tenant",
    "TenantRole",
    "TenantState",
    "UsageMinute",
    "UsageRecord",
    "User",
]

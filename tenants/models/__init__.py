"""Who may do what, and what it cost."""

from tenants.models.access import AccessToken, ApiKey, Grant, GrantEffect, PrincipalKind
from tenants.models.audit import AuditEvent
from tenants.models.ledger import (
    DeadLetter,
    LedgerMark,
    PlatformMinute,
    UsageDay,
    UsageHour,
    UsageMinute,
    UsageRecord,
)
from tenants.models.prices import Installation, Price
from tenants.models.quota import Limit, LimitGeneration, Metric, Window
from tenants.models.tenant import Membership, PlatformRole, SlaTier, Tenant, TenantRole, TenantState, User

__all__ = [
    "AccessToken",
    "ApiKey",
    "AuditEvent",
    "DeadLetter",
    "Grant",
    "GrantEffect",
    "Installation",
    "LedgerMark",
    "Limit",
    "LimitGeneration",
    "Membership",
    "Metric",
    "PlatformMinute",
    "PlatformRole",
    "Price",
    "PrincipalKind",
    "SlaTier",
    "Tenant",
    "TenantRole",
    "TenantState",
    "UsageDay",
    "UsageHour",
    "UsageMinute",
    "UsageRecord",
    "User",
    "Window",
]

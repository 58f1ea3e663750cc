"""Who may do what, and what it cost."""

from tenants.models.access import AccessToken, ApiKey, Grant, GrantEffect, KeyPurpose, PrincipalKind
from tenants.models.adjustments import Adjustment, AdjustmentKind
from tenants.models.audit import AuditEvent
from tenants.models.configuration import ConfigurationChange
from tenants.models.issuers import TokenIssuer
from tenants.models.latency import (
    LatencyHour,
    LatencyMinute,
    ModelLatencyHour,
    ModelLatencyMinute,
    RefusalMinute,
)
from tenants.models.ledger import (
    DeadLetter,
    LedgerMark,
    PlatformMinute,
    TenantDay,
    TenantHour,
    UsageDay,
    UsageHour,
    UsageMinute,
    UsageRecord,
)
from tenants.models.notices import Channel, Delivery, Notice, Webhook
from tenants.models.people import Invitation, LoginLink, RoleMapping
from tenants.models.prices import Installation, Price
from tenants.models.quota import Limit, LimitGeneration, Metric, Window
from tenants.models.requests import AccessRequest, RequestKind
from tenants.models.showback import GpuShare
from tenants.models.tenant import (
    Membership,
    PlatformRole,
    RoleSource,
    SlaTier,
    Tenant,
    TenantRole,
    TenantState,
    User,
)

__all__ = [
    "AccessRequest",
    "AccessToken",
    "Adjustment",
    "AdjustmentKind",
    "ApiKey",
    "AuditEvent",
    "Channel",
    "ConfigurationChange",
    "DeadLetter",
    "Delivery",
    "GpuShare",
    "Grant",
    "GrantEffect",
    "Installation",
    "Invitation",
    "KeyPurpose",
    "LatencyHour",
    "LatencyMinute",
    "LedgerMark",
    "Limit",
    "LimitGeneration",
    "LoginLink",
    "Membership",
    "Metric",
    "ModelLatencyHour",
    "ModelLatencyMinute",
    "Notice",
    "PlatformMinute",
    "PlatformRole",
    "Price",
    "PrincipalKind",
    "RefusalMinute",
    "RequestKind",
    "RoleMapping",
    "RoleSource",
    "SlaTier",
    "Tenant",
    "TenantDay",
    "TenantHour",
    "TenantRole",
    "TenantState",
    "TokenIssuer",
    "UsageDay",
    "UsageHour",
    "UsageMinute",
    "UsageRecord",
    "User",
    "Webhook",
    "Window",
]

"""What this app, and those that it builds on, hold about tenants and people; see tenants.erasure."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from allauth.account.models import EmailAddress, EmailConfirmation
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.contrib.admin.models import LogEntry

from core.epochs import Section
from core.models import IdempotencyRecord
from tenants import models as rows
from tenants.erasure import Held, hold, publish, watch
from tenants.standing import read_standings

_LEDGER: Final = "books name people and keys by id only, and are kept as long as books must be"
_NAMED: Final = frozenset({"id", "email", "display_name"})

HELD: Final = (
    Held(rows.Tenant, tenant="pk"),
    # A person is erased with a tenant only where they are nowhere else: see tenants.services.erasure.
    Held(
        rows.User,
        tenant="memberships__tenant_id",
        people=("pk",),
        secret=frozenset({"password", "sessions_ended"}),
        seen_by_tenant=_NAMED,
        kept="people may belong elsewhere",
    ),
    Held(rows.Membership, tenant="tenant_id", people=("user_id",)),
    Held(rows.ApiKey, tenant="tenant_id", people=("created_by_id",), secret=frozenset({"digest"})),
    Held(rows.AccessToken, people=("user_id",), secret=frozenset({"digest"})),
    Held(rows.LoginLink, people=("user_id",), secret=frozenset({"digest"})),
    Held(rows.Grant, tenant="tenant_id"),
    Held(rows.TokenIssuer, tenant="tenant_id"),
    Held(rows.Limit, tenant="tenant_id"),
    Held(
        rows.Invitation,
        tenant="tenant_id",
        people=("invited_by_id", "accepted_by_id"),
        addresses=("email",),
        secret=frozenset({"digest"}),
    ),
    Held(rows.RoleMapping, tenant="tenant_id", addresses=("value",)),
    Held(rows.AccessRequest, tenant="tenant_id", people=("requested_by_id", "decided_by_id")),
    Held(rows.Notice, tenant="tenant_id"),
    Held(rows.Webhook, tenant="tenant_id"),
    Held(rows.Delivery, tenant="notice__tenant_id", people=("user_id",)),
    Held(rows.ConfigurationChange, tenant="tenant_id", kept="erased last: deleting other rows writes into it"),
    Held(rows.UsageRecord, tenant="tenant_id", kept=_LEDGER),
    Held(rows.UsageMinute, tenant="tenant_id", kept=_LEDGER),
    Held(rows.UsageHour, tenant="tenant_id", kept=_LEDGER),
    Held(rows.UsageDay, tenant="tenant_id", kept=_LEDGER),
    Held(rows.TenantHour, tenant="tenant_id", kept=_LEDGER),
    Held(rows.TenantDay, tenant="tenant_id", kept=_LEDGER),
    Held(rows.LatencyMinute, tenant="tenant_id", kept=_LEDGER),
    Held(rows.LatencyHour, tenant="tenant_id", kept=_LEDGER),
    Held(rows.RefusalMinute, tenant="tenant_id", kept=_LEDGER),
    Held(rows.GpuShare, tenant="tenant_id", kept=_LEDGER),
    Held(rows.Adjustment, tenant="tenant_id", people=("created_by",), kept=_LEDGER),
    Held(rows.AuditEvent, tenant="tenant_id", people=("actor_id",), kept="names people by id only, and is for ever"),
    Held(IdempotencyRecord, people=("person_id",), secret=frozenset({"body", "headers"})),
    Held(EmailAddress, people=("user_id",), addresses=("email",)),
    Held(EmailConfirmation, people=("email_address__user_id",), secret=frozenset({"key"})),
    Held(Authenticator, people=("user_id",), secret=frozenset({"data"})),
    Held(SocialAccount, people=("user_id",)),
    Held(SocialToken, people=("account__user_id",), secret=frozenset({"token", "token_secret"})),
    # What they edited may be called by another person's name.
    Held(LogEntry, people=("user_id",), secret=frozenset({"object_repr", "change_message"})),
)

NOBODYS: Final = frozenset(
    {
        "core.SectionEpoch",
        "core.Change",
        "tenants.PlatformMinute",
        "tenants.ModelLatencyMinute",
        "tenants.ModelLatencyHour",
        "tenants.LedgerMark",
        "tenants.Installation",
        "tenants.Price",
        "tenants.LimitGeneration",
        "tenants.DeadLetter",  # rows for the ledger that it would not take: ids and counts, like its own
        "socialaccount.SocialApp",
        "auth.Permission",
        "auth.Group",
        "contenttypes.ContentType",
        "sessions.Session",  # encoded: looked into one by one when a person is erased, and no part of an export
    }
)
"""Models whose rows tell of no tenant and nobody."""


def register() -> None:
    """Say all of it; when Django starts."""
    hold(*HELD)
    watch(_in_the_way)
    publish(_to_publish)


def _in_the_way(tenant_id: UUID) -> Sequence[str]:
    found: list[str] = []
    if departments := sorted(rows.Tenant.objects.filter(parent_id=tenant_id).values_list("slug", flat=True)):
        found.append(f"Departments belong to it: {', '.join(departments[:10])}. Move or erase them first.")
    limits = rows.Limit.objects.filter(tenant_id=tenant_id, window=rows.Window.STANDING)
    standings = read_standings([*limits.values_list("pk", flat=True)])
    if running := max((standing.reserved for standing in standings.values()), default=0):
        found.append(f"{running} of its requests are under way.")
    return found


def _to_publish(tenant_id: UUID) -> Sequence[tuple[Section, UUID]]:
    sections = ((Section.KEYS, rows.ApiKey), (Section.LIMITS, rows.Limit), (Section.ISSUERS, rows.TokenIssuer))
    found = [
        (section, pk)
        for section, model in sections
        for pk in model.objects.filter(tenant_id=tenant_id).order_by("pk").values_list("pk", flat=True)
    ]
    return [*found, (Section.GRANTS, tenant_id)]

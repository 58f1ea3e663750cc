"""What the gateway holds about tenants: what they said and were told; see tenants.erasure."""

from typing import Final
from uuid import UUID

from django.db.models import Q

from gateway import models as rows
from tenants.erasure import Held, hold, sweep_with
from tenants.models import Notice

HELD: Final = (
    Held(rows.StoredResponse, tenant="tenant_id", bulky=True),
    Held(rows.StoredConversation, tenant="tenant_id", bulky=True),
    Held(rows.Objective, tenant="tenant_id", people=("created_by_id",)),
    Held(rows.ObjectiveMinute, tenant="objective__tenant_id", bulky=True),
    Held(rows.ObjectiveHour, tenant="objective__tenant_id", bulky=True),
    Held(rows.ObjectiveAlert, tenant="objective__tenant_id", people=("acknowledged_by_id",)),
    Held(rows.Silence, tenant="tenant_id", people=("created_by_id",)),
)

NOBODYS: Final = frozenset({"gateway.EndedSpool", "gateway.EngineReading", "gateway.EngineDrift"})
"""Models whose rows tell of no tenant and nobody."""


def register() -> None:
    """Say all of it; when Django starts."""
    hold(*HELD)
    sweep_with(forget_platform_notices)


def forget_platform_notices(tenant_id: UUID) -> None:
    """What operators were told of objectives about the tenant names it, and is not the tenant's row.

    An objective may be deleted since, so the notice says whom it is about; an older one says which objective alone.
    """
    objectives = rows.Objective.objects.filter(tenant_id=tenant_id).values_list("pk", flat=True)
    about = Q(payload__tenant_id=str(tenant_id)) | Q(payload__objective__in=[str(pk) for pk in objectives])
    Notice.objects.filter(about, tenant=None).delete()

"""Looking at a tenant as one of its members does: when it began and ended is in the audit log, nothing else is kept."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from tenants.actor import Actor
from tenants.models import Membership, Tenant
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict

LONGEST_VIEW: Final = timedelta(hours=1)
"""Then it is over by itself: who forgets to end it has not looked for a day."""


@transaction.atomic
def begin_viewing(tenant: Tenant, user_id: UUID, *, actor: Actor) -> tuple[Membership, datetime]:
    """The member whose eyes are borrowed, and until when.

    Raises Membership.DoesNotExist for who is no member, Conflict for who may not log in: they see nothing.
    """
    member = Membership.objects.select_related("user", "tenant").get(tenant=tenant, user_id=user_id)
    if not member.user.is_active:
        raise Conflict("This person is deactivated and sees nothing.")
    until = timezone.now() + LONGEST_VIEW
    record_audit(
        "view_as.begun",
        subject=member,
        actor=actor,
        tenant_id=tenant.pk,
        after={"user": str(user_id), "role": member.role, "until": until.isoformat(timespec="seconds")},
    )
    return member, until


@transaction.atomic
def end_viewing(member: Membership, *, actor: Actor, why: str) -> None:
    """`why`: ended (by hand), over (its time or a role was), logged_out."""
    record_audit(
        "view_as.ended",
        subject=member,
        actor=actor,
        tenant_id=member.tenant_id,
        after={"user": str(member.user_id), "why": why},
    )

"""Erasure of a tenant or a person: what tells of them is deleted, and what is kept names them by id only.

A tenant is erased in three steps: it is marked (and never serves again), what is bulky is deleted batch by batch, and
the rest in one transaction. A process that dies in between leaves a marked tenant; whoever asks again, or the task
that looks for such ones, goes on.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

import structlog
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.db import models, transaction
from django.db.models import Q, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from core.epochs import Section, bump_epoch
from core.models import IdempotencyRecord
from tenants import erasure
from tenants.actor import SYSTEM, Actor
from tenants.models import (
    AccessRequest,
    ConfigurationChange,
    Invitation,
    Membership,
    Notice,
    PlatformRole,
    RoleMapping,
    Tenant,
    TenantRole,
    TenantState,
    User,
)
from tenants.services.audit import record_audit
from tenants.services.configuration import erase_history
from tenants.services.errors import Conflict
from tenants.services.invitations import withdraw_unbacked_invitations
from tenants.services.people import lock_person

MARGIN: Final = timedelta(seconds=30)
BATCH: Final = 500

log = structlog.get_logger(__name__)


def quiet_after() -> timedelta:
    """How long after its suspension nothing of a tenant can be under way any more.

    A door that has lost the database goes on by what it knew for `snapshot_stale_seconds`, and what it lets in then
    runs for `total_deadline_seconds` at most.
    """
    env = settings.GATEHOUSE
    return timedelta(seconds=env.snapshot_stale_seconds + env.total_deadline_seconds) + MARGIN


def erase_tenant(tenant_id: UUID, *, actor: Actor, now: datetime | None = None) -> dict[str, int]:
    """Delete everything that tells of the tenant; returns how many rows of each model. It cannot be undone.

    People who belong to no other tenant and have no platform role are erased with it. Ledger and audit rows stay:
    they name it by id. Raises Tenant.DoesNotExist, and Conflict naming what is in the way: it is not suspended, or
    something of it is, or may be, under way.
    """
    _mark(tenant_id, actor=actor, now=now or timezone.now())
    counts: dict[str, int] = {}
    for held in erasure.all_held():
        if held.bulky and not held.kept:
            counts[held.model._meta.label] = _delete_batches(held.of_tenant(tenant_id))
    erasure.sweep(tenant_id)
    _erase_rest(tenant_id, counts, actor=actor)
    return counts


def finish_erasures(*, now: datetime) -> int:
    """Go on with erasures that a process left half done; returns how many. Safe to run twice."""
    begun = Tenant.objects.filter(erasing_at__lt=now - timedelta(minutes=5)).values_list("pk", flat=True)
    done = 0
    for tenant_id in list(begun):
        try:
            erase_tenant(tenant_id, actor=SYSTEM, now=now)
            done += 1
        except (Conflict, Tenant.DoesNotExist):  # something is in the way again, or another was faster
            continue
        except Exception:  # a defect that one tenant brings out must not keep all others
            log.exception("tenant_not_erased", tenant_id=str(tenant_id))
    return done


@transaction.atomic
def erase_person(user_id: UUID, *, actor: Actor) -> None:
    """Delete someone and all that tells of them; what they made stays, and names nobody.

    Raises User.DoesNotExist; Conflict for a tenant's last owner, and the last superuser.
    """
    user, superusers = lock_person(user_id)
    if superusers == [user.pk]:
        raise Conflict("This is the last superuser: make someone else one first.")
    owned = Membership.objects.filter(user=user, role=TenantRole.OWNER).order_by("tenant_id")
    for tenant in Tenant.objects.select_for_update().filter(pk__in=owned.values("tenant_id")).order_by("pk"):
        owners = Membership.objects.filter(tenant=tenant, role=TenantRole.OWNER, user__is_active=True)
        if not owners.exclude(user=user).exists():
            raise Conflict(f"This is the last owner of {tenant.slug}: make someone else one first.")
    _erase_people([user], actor=actor)


@transaction.atomic
def _mark(tenant_id: UUID, *, actor: Actor, now: datetime) -> None:
    tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
    reasons = [*_not_quiet(tenant, now), *erasure.blockers(tenant_id)]
    if reasons:
        raise Conflict(" ".join(reasons))
    if tenant.erasing_at is None:
        tenant.erasing_at = now
        tenant.save(update_fields=["erasing_at"])
        record_audit("tenant.erasure_begun", subject=tenant, actor=actor, tenant_id=tenant_id)
        bump_epoch(Section.GRANTS, tenant_id)


def _not_quiet(tenant: Tenant, now: datetime) -> Iterator[str]:
    if tenant.state != TenantState.SUSPENDED:
        yield "The tenant is not suspended: suspend it first."
        return
    # The history of configuration has it whoever suspended it; what is older than that is long ago.
    suspended = (
        ConfigurationChange.objects.filter(
            table=Tenant._meta.db_table, object_id=tenant.pk, after__state=TenantState.SUSPENDED.value
        )
        .filter(Q(before__isnull=True) | ~Q(before__state=TenantState.SUSPENDED.value))
        .order_by("-id")
        .first()
    )
    quiet_at = suspended.at + quiet_after() if suspended is not None else now
    if quiet_at > now:
        yield f"Its last requests may run until {quiet_at:%Y-%m-%d %H:%M:%S} UTC: erase it then."


def _delete_batches(rows: "models.QuerySet[models.Model]") -> int:
    """Each batch in a transaction of its own, so that nobody waits for long."""
    deleted = 0
    while True:
        with transaction.atomic():
            page = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
            if page:
                deleted += rows.filter(pk__in=page).delete()[0]
        if len(page) < BATCH:
            return deleted


@transaction.atomic
def _erase_rest(tenant_id: UUID, counts: dict[str, int], *, actor: Actor) -> None:
    tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
    reasons = [*erasure.blockers(tenant_id)]
    if reasons:
        raise Conflict(" ".join(reasons))
    news = {*erasure.news(tenant_id)}
    _forget_answers([str(tenant.pk), f"/tenants/{tenant.slug}/", f'"{tenant.slug}"'])
    opened = AccessRequest.objects.filter(tenant=tenant).values_list("pk", flat=True)
    Notice.objects.filter(tenant=None, payload__request__in=[str(pk) for pk in opened]).delete()
    alone = (
        User.objects.filter(memberships__tenant=tenant, platform_role=PlatformRole.NONE)
        .exclude(pk__in=Membership.objects.exclude(tenant=tenant).values("user_id"))
        .order_by("pk")
    )
    _erase_people(list(alone), actor=actor)
    for held in erasure.all_held():
        if not held.tenant or held.kept:
            continue
        rows = held.of_tenant(tenant_id)
        _forget_log(str(pk) for pk in rows.values_list("pk", flat=True))
        label = held.model._meta.label
        counts[label] = counts.get(label, 0) + rows.count()
        rows.delete()
    erase_history(tenant_id)
    record_audit("tenant.erased", subject=tenant, actor=actor, tenant_id=tenant_id, after={"rows": counts})
    order = list(Section)
    for section, object_id in sorted(news, key=lambda item: (order.index(item[0]), item[1])):
        bump_epoch(section, object_id)


def _erase_people(people: Collection[User], *, actor: Actor) -> None:
    """Rows with a foreign key to them go with them, or lose it."""
    if not people:
        return
    for user in people:
        record_audit("user.erased", subject=user, actor=actor)
        Invitation.objects.filter(Q(email__iexact=user.email) | Q(accepted_by=user)).delete()
        RoleMapping.objects.filter(value__iexact=user.email).delete()
    ids, addresses = [str(user.pk) for user in people], [user.email for user in people]
    IdempotencyRecord.objects.filter(person_id__in=[user.pk for user in people]).delete()
    _forget_answers([*ids, *addresses])
    _forget_log(ids)
    _end_sessions({*ids, *addresses})
    for user in people:
        user.is_active = False  # whom they invited is invited no longer
        user.save(update_fields=["is_active"])
        withdraw_unbacked_invitations(user, actor=actor)
        user.delete()


def _forget_answers(needles: Iterable[str]) -> None:
    """Answers that are kept for a day in case that a request is sent again, and tell of these."""
    told = IdempotencyRecord.objects.annotate(text=Cast("body", TextField()))
    for needle in needles:
        told.filter(Q(target__contains=needle) | Q(text__icontains=needle)).delete()


def _forget_log(object_ids: Iterable[str]) -> None:
    """The backoffice's own log of recent actions, which has the names of what was edited."""
    for some in _batches(object_ids):
        LogEntry.objects.filter(object_id__in=some).delete()


def _end_sessions(names: Collection[str]) -> None:
    """Log-ins, and those that were begun: what a session holds is encoded, so that each has to be looked into."""
    ended = [session.pk for session in Session.objects.iterator() if _mentions(session.get_decoded(), names)]
    for some in _batches(ended):
        Session.objects.filter(pk__in=some).delete()


def _mentions(value: Any, names: Collection[str]) -> bool:
    if isinstance(value, dict):
        return any(_mentions(part, names) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(_mentions(part, names) for part in value)
    return isinstance(value, str) and value in names


def _batches(values: Iterable[str]) -> Iterator[list[str]]:
    left = iter(values)
    while some := list(islice(left, BATCH)):
        yield some

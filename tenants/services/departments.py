"""What can be changed of a tenant: its name, its place among the others, its tier, the zone of its calendar.

A tenant's calendar budgets run by its zone. When the zone changes, they run by the new zone's days and months at
once. A counter belongs to a period, and the periods are others now: theirs begin at nothing, and hold what the ledger
has of them once they are compared with it. That is done at once (seconds), for what is under way then within half a
minute. Who may change the zone of a tenant that has budgets can therefore overspend them a little, so that the control
API leaves it to operators. The same is true of what a department used before it got a parent with a limit over its
subtree.
Statements are of the zone that the tenant has when they are asked for.
"""

from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import connection, transaction

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import Limit, Tenant
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.tenants import MOST_RETENTION_DAYS

DEEPEST: Final = 8
"""Tenants on the longest way down, the uppermost included."""

_TREE_LOCK: Final = 0x6761_7474  # one change of the tree at a time: two could close a circle together


def lock_tenant(tenant_id: UUID) -> Tenant:
    """The tenant, its row locked until the transaction ends. Raises Tenant.DoesNotExist."""
    return Tenant.objects.select_for_update(of=("self",), no_key=True).select_related("parent").get(pk=tenant_id)


@transaction.atomic
def change_tenant(
    tenant_id: UUID,
    *,
    actor: Actor,
    name: str | None = None,
    time_zone: str | None = None,
    sla_tier: str | None = None,
    response_retention_days: int | None = None,
    conversation_retention_days: int | None = None,
) -> Tenant:
    """Change what is given; in force within a second everywhere.

    Raises Tenant.DoesNotExist; InvalidInput for an empty name, an unknown zone or tier, absurd days.
    """
    tenant = lock_tenant(tenant_id)
    given: dict[str, Any] = {
        "name": name.strip() if name is not None else None,
        "time_zone": time_zone,
        "sla_tier": sla_tier,
        "response_retention_days": response_retention_days,
        "conversation_retention_days": conversation_retention_days,
    }
    changed = {field: value for field, value in given.items() if value is not None and value != getattr(tenant, field)}
    for field in ("response_retention_days", "conversation_retention_days"):
        if (days := given[field]) is not None and not 0 <= days <= MOST_RETENTION_DAYS:
            raise InvalidInput(field, f"Give 0 to {MOST_RETENTION_DAYS} days.")
    if not changed:
        return tenant
    before = {field: getattr(tenant, field) for field in changed}
    for field, value in changed.items():
        setattr(tenant, field, value)
    try:
        tenant.clean_fields(exclude={"slug", "parent", "state"})
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInput(field, " ".join(messages)) from error
    tenant.save(update_fields=[*changed])
    _tell("tenant.changed", tenant, actor, before=before, after=changed)
    if "time_zone" in changed:
        _bump_limits(tenant)
    return tenant


@transaction.atomic
def set_parent(tenant_id: UUID, parent_id: UUID | None, *, actor: Actor) -> Tenant:
    """Make the tenant a department of another, or of none. Its use counts into the new parent's limits from now on.

    Raises Tenant.DoesNotExist for the tenant; InvalidInput for an unknown parent, one that is the tenant itself or
    below it, and a tree deeper than DEEPEST; Conflict when the parent is suspended.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_TREE_LOCK])
    tenant = lock_tenant(tenant_id)
    if tenant.parent_id == parent_id:
        return tenant
    parent = None
    if parent_id is not None:
        parent = Tenant.objects.filter(pk=parent_id).first()
        if parent is None:
            raise InvalidInput("parent", "There is no such tenant.")
        above = _ancestors(parent_id)
        if tenant_id in above:
            raise InvalidInput("parent", "A tenant cannot be below itself.")
        if len(above) + _height(tenant_id) > DEEPEST:
            raise InvalidInput("parent", f"Departments go at most {DEEPEST} deep.")
        if parent.state != "active":
            raise Conflict("The parent is suspended.")
    before, tenant.parent = tenant.parent_id, parent
    tenant.save(update_fields=["parent"])
    _tell(
        "tenant.moved",
        tenant,
        actor,
        before={"parent": str(before) if before else None},
        after={"parent": str(parent_id) if parent_id else None},
    )
    _bump_limits(tenant)
    for near in ([before] if before else []) + ([parent_id] if parent_id else []):
        for limit_id in Limit.objects.filter(tenant__in=_ancestors(near), subtree=True).values_list("pk", flat=True):
            bump_epoch(Section.LIMITS, limit_id)  # others' use counts under it now
    return tenant


def _ancestors(tenant_id: UUID) -> list[UUID]:
    """The tenant and all above it, nearest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE up(id, parent_id, steps) AS ("
            "SELECT id, parent_id, 1 FROM tenants_tenant WHERE id = %s UNION ALL "
            "SELECT t.id, t.parent_id, up.steps + 1 FROM tenants_tenant t JOIN up ON t.id = up.parent_id "
            "WHERE up.steps < 64) SELECT id FROM up ORDER BY steps",
            [tenant_id],
        )
        return [row[0] for row in cursor.fetchall()]


def _height(tenant_id: UUID) -> int:
    """How deep the tree below the tenant is, itself included."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE down(id, depth) AS (SELECT %s::uuid, 1 UNION ALL "
            "SELECT t.id, down.depth + 1 FROM tenants_tenant t JOIN down ON t.parent_id = down.id "
            "WHERE down.depth < 64) SELECT max(depth) FROM down",
            [tenant_id],
        )
        return int(cursor.fetchone()[0])


def _tell(action: str, tenant: Tenant, actor: Actor, *, before: dict[str, Any], after: dict[str, Any]) -> None:
    record_audit(action, subject=tenant, actor=actor, tenant_id=tenant.pk, before=before, after=after)
    bump_epoch(Section.GRANTS, tenant.pk)


def _bump_limits(tenant: Tenant) -> None:
    """Its limits' rows carry its zone, and whoever counts by the tree looks at them again."""
    for limit_id in Limit.objects.filter(tenant=tenant).order_by("pk").values_list("pk", flat=True):
        bump_epoch(Section.LIMITS, limit_id)

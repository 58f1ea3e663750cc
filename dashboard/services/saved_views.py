"""Filters that a person gave a name."""

from typing import Final
from uuid import UUID

from django.db import transaction

from core.refusals import Conflict, InvalidInput
from dashboard.models import SavedView
from tenants.actor import Actor
from tenants.models import Tenant, User
from tenants.services.audit import record_audit

MOST_VIEWS: Final = 50
"""Of one person in one table."""


@transaction.atomic
def save_view(person: User, *, tenant: Tenant | None, table: str, name: str, query: str, actor: Actor) -> SavedView:
    """Keep `query` under `name`; one that is called so is replaced.

    Raises InvalidInput for a name or a query that cannot be kept, Conflict beyond MOST_VIEWS.
    """
    name = name.replace("\x00", "").strip()
    if not 1 <= len(name) <= 80:
        raise InvalidInput("name", "Give the view a name of at most 80 characters.")
    if len(query) > 1000:
        raise InvalidInput("query", "This filter is too long to be kept: at most 1,000 characters.")
    User.objects.select_for_update().get(pk=person.pk)  # two saves at once would both find room
    mine = SavedView.objects.filter(person=person, tenant_id=tenant.pk if tenant else None, table=table)
    if mine.exclude(name=name).count() >= MOST_VIEWS:
        raise Conflict(f"There are {MOST_VIEWS} saved views of this list already: delete one first.")
    view, made = mine.update_or_create(
        name=name,
        defaults={"query": query},
        create_defaults={
            "query": query,
            "person": person,
            "tenant_id": tenant.pk if tenant else None,
            "table": table,
            "name": name,
        },
    )
    record_audit(
        "saved_view.created" if made else "saved_view.changed",
        subject=view,
        actor=actor,
        tenant_id=view.tenant_id,
        after={"table": table, "name": name},
    )
    return view


@transaction.atomic
def delete_view(person: User, view_id: UUID, *, actor: Actor) -> SavedView:
    """Forget one of the person's own. Raises SavedView.DoesNotExist."""
    view = SavedView.objects.get(pk=view_id, person=person)
    record_audit(
        "saved_view.deleted",
        subject=view,
        actor=actor,
        tenant_id=view.tenant_id,
        before={"table": view.table, "name": view.name},
    )
    view.delete()
    return view

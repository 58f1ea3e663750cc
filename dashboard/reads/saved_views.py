"""Saved views of one person."""

from dashboard.models import SavedView
from tenants.models import Tenant, User


def list_views(person: User, *, tenant: Tenant | None, table: str) -> list[SavedView]:
    """Of one list, by name; those of a portal's page belong to its tenant."""
    mine = SavedView.objects.filter(person=person, tenant_id=tenant.pk if tenant else None, table=table)
    return list(mine.order_by("name"))

"""Exports of everything about a tenant or a person: that somebody asked for one is in the audit log."""

from collections.abc import Iterator

from django.db import transaction
from django.utils import timezone

from tenants.actor import Actor
from tenants.models import Tenant, User
from tenants.reads import export
from tenants.services.audit import record_audit


@transaction.atomic
def export_tenant(tenant: Tenant, *, actor: Actor) -> Iterator[bytes]:
    """See tenants.reads.export; nothing is read before the first piece is asked for."""
    record_audit("tenant.exported", subject=tenant, actor=actor, tenant_id=tenant.pk)
    return export.export_tenant(tenant, at=timezone.now())


@transaction.atomic
def export_person(person: User, *, actor: Actor) -> Iterator[bytes]:
    """The same of a person."""
    record_audit("user.exported", subject=person, actor=actor)
    return export.export_person(person, at=timezone.now())

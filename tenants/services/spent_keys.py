"""Deleting keys that can never be used again."""

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, Grant, PrincipalKind
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput
from tenants.services.key_rotation import pass_on_limits


@transaction.atomic
def delete_spent_key(key_id: UUID, *, actor: Actor) -> None:
    """Delete a revoked or expired key with its grants; usage rows and the audit log keep its id.

    Its limits go to the others of its lineage, and with the last of them. Raises ApiKey.DoesNotExist, or InvalidInput
    for a key that still works.
    """
    key = ApiKey.objects.select_for_update().get(pk=key_id)
    if key.is_usable(timezone.now()):
        raise InvalidInput("key", "This key still works: revoke it first.")
    record_audit("api_key.deleted", subject=key, actor=actor, tenant_id=key.tenant_id, before={"name": key.name})
    bump_epoch(Section.KEYS, key.pk)
    if Grant.objects.filter(principal_kind=PrincipalKind.KEY, principal_id=key.pk).delete()[0]:
        bump_epoch(Section.GRANTS, key.tenant_id)
    pass_on_limits(key)
    for limit_id in key.limits.values_list("pk", flat=True):
        bump_epoch(Section.LIMITS, limit_id)
    key.delete()

"""Deleting keys that can never be used again."""

from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, Grant, Limit, PrincipalKind
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput
from tenants.services.key_rotation import pass_on_limits

_LONGEST_PERIOD: Final = timedelta(days=33)
"""No limit counts for longer than a month; with some hours for zones and rows that come late."""


@transaction.atomic
def delete_spent_key(key_id: UUID, *, actor: Actor) -> None:
    """Delete a revoked or expired key with its grants; usage rows and the audit log keep its id.

    Its limits go to the others of its lineage, and with the last of them. Raises ApiKey.DoesNotExist, or InvalidInput
    for a key that still works, or whose use still counts under the limits that it shares with others.
    """
    key = ApiKey.objects.select_for_update().get(pk=key_id)
    if key.is_usable(timezone.now()):
        raise InvalidInput("key", "This key still works: revoke it first.")
    if _counts_for_others(key):
        raise InvalidInput(
            "key", "Its use counts under the limits of the key that it was rotated into, until a month after its end."
        )
    record_audit("api_key.deleted", subject=key, actor=actor, tenant_id=key.tenant_id, before={"name": key.name})
    bump_epoch(Section.KEYS, key.pk)
    if Grant.objects.filter(principal_kind=PrincipalKind.KEY, principal_id=key.pk).delete()[0]:
        bump_epoch(Section.GRANTS, key.tenant_id)
    pass_on_limits(key)
    for limit_id in key.limits.values_list("pk", flat=True):
        bump_epoch(Section.LIMITS, limit_id)
    key.delete()


def _counts_for_others(key: ApiKey) -> bool:
    """Whether limits of others may rest on its use: that it is one of their lineage is written in its row alone.

    Of the lineage's first key they have the id, and need no row.
    """
    ended_at = key.revoked_at or key.expires_at
    if key.lineage is None or ended_at is None or ended_at < timezone.now() - _LONGEST_PERIOD:
        return False
    lineage = ApiKey.objects.filter(lineage=key.lineage) | ApiKey.objects.filter(pk=key.lineage)
    return Limit.objects.filter(key__in=lineage).exists()

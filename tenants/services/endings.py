"""Tidying up what was raised for a time: the doors stopped counting it by themselves, here it is written down."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from core.epochs import Section, bump_epoch
from tenants.actor import SYSTEM
from tenants.models import Limit
from tenants.services.audit import record_audit


def end_boosts(*, now: datetime) -> int:
    """Clear raised amounts whose time is over, with an audit row each; returns how many. Safe to run twice."""
    over = Limit.objects.filter(boost_until__lte=now).order_by("id").values_list("pk", flat=True)
    return sum(_end_boost(limit_id, now) for limit_id in list(over))


@transaction.atomic
def _end_boost(limit_id: UUID, now: datetime) -> bool:
    limit = Limit.objects.select_for_update().filter(pk=limit_id, boost_until__lte=now).first()
    if limit is None:
        return False
    before = {"boost_amount": limit.boost_amount, "boost_until": limit.boost_until and limit.boost_until.isoformat()}
    limit.boost_amount = limit.boost_until = None
    limit.save(update_fields=["boost_amount", "boost_until"])
    record_audit("limit.boost_expired", subject=limit, actor=SYSTEM, tenant_id=limit.tenant_id, before=before)
    bump_epoch(Section.LIMITS, limit.pk)
    return True

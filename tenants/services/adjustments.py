"""Credits and corrections on a tenant's statements."""

import re
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from tenants.actor import Actor
from tenants.models import Adjustment, AdjustmentKind, Tenant, UsageRecord
from tenants.policies.money import MOST_MICROS, amount_of
from tenants.policies.periods import month_of
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput

_MONTH: Final = re.compile(r"20\d\d-(0[1-9]|1[0-2])")


@transaction.atomic
def adjust_bill(
    tenant: Tenant,
    *,
    kind: str,
    amount_micros: int,
    month: str,
    reason: str,
    actor: Actor,
    usage_record_id: UUID | None = None,
) -> Adjustment:
    """Add an amount (millionths of the currency; below zero in the tenant's favour) to a month such as 2026-11.

    It cannot be changed or taken back; a mistake is set right by another one. It changes the bill, not what limits
    count, but for a correction that names a ledger row. Raises InvalidInput for zero, an absurd amount, a credit that
    is not negative, a month that has not begun in the tenant's zone or was over before there was the tenant, no reason,
    a ledger row that is not the tenant's, or a row's corrections that take off more than it cost.
    """
    if kind not in AdjustmentKind:
        raise InvalidInput("kind", f"One of {', '.join(AdjustmentKind.values)}.")
    if amount_micros == 0 or abs(amount_micros) > MOST_MICROS:
        raise InvalidInput("amount", "An amount is not zero, and at most a million of the currency.")
    if kind == AdjustmentKind.CREDIT and amount_micros > 0:
        raise InvalidInput("amount", "A credit is negative: it is taken off the bill.")
    if not _MONTH.fullmatch(month):
        raise InvalidInput("month", "A month is written like 2026-11.")
    if month > month_of(tenant.time_zone, timezone.now().timestamp()):
        raise InvalidInput("month", "That month has not begun yet.")
    if month < month_of(tenant.time_zone, tenant.created_at.timestamp()):
        raise InvalidInput("month", "There was no such tenant yet: nobody would see it.")
    reason = reason.strip()
    if not 0 < len(reason) <= 200 or "\x00" in reason:
        raise InvalidInput("reason", "Give a reason, of at most 200 characters.")
    if usage_record_id is not None:
        _check_row(tenant, usage_record_id, amount_micros if kind == AdjustmentKind.CORRECTION else 0)
    adjustment = Adjustment.objects.create(
        tenant_id=tenant.pk,
        kind=kind,
        amount_micros=amount_micros,
        month=month,
        reason=reason,
        usage_record_id=usage_record_id,
        created_by=actor.id if actor.kind == "user" else None,
    )
    record_audit(
        "adjustment.made",
        subject=adjustment,
        actor=actor,
        tenant_id=tenant.pk,
        after={"kind": kind, "amount_micros": amount_micros, "month": month, "reason": reason},
    )
    return adjustment


def _check_row(tenant: Tenant, usage_record_id: UUID, correction: int) -> None:
    """Budgets count what a row costs with its corrections: below nothing they would let more pass than they are."""
    cost = UsageRecord.objects.filter(pk=usage_record_id, tenant_id=tenant.pk).values_list("cost_micros", flat=True)
    known = cost.first()
    if known is None:
        raise InvalidInput("usage_record_id", "This tenant has no such request in the ledger.")
    if correction < 0:
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # of two at once the second sees the first
        earlier = Adjustment.objects.filter(usage_record_id=usage_record_id, kind=AdjustmentKind.CORRECTION)
        left = known + earlier.aggregate(sum=Sum("amount_micros", default=0))["sum"]
        if left + correction < 0:
            raise InvalidInput("amount", f"The request cost {amount_of(left)}: no more can be taken off it.")

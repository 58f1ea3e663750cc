"""Credits and corrections on a tenant's statements."""

import re
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from tenants.actor import Actor
from tenants.models import Adjustment, AdjustmentKind, Tenant, UsageRecord
from tenants.policies.money import MOST_MICROS
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
    count. Raises InvalidInput for zero, an absurd amount, a credit that is not negative, a month that has not begun
    in the tenant's zone, no reason, or a ledger row that is not the tenant's.
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
    reason = reason.strip()
    if not 0 < len(reason) <= 200 or "\x00" in reason:
        raise InvalidInput("reason", "Give a reason, of at most 200 characters.")
    if usage_record_id is not None and not UsageRecord.objects.filter(pk=usage_record_id, tenant_id=tenant.pk).exists():
        raise InvalidInput("usage_record_id", "This tenant has no such request in the ledger.")
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

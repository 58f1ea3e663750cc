"""Limits: made, changed, raised for a while, taken away. In force within a second everywhere.

What a limit counts (its scope, metric and window) is what it is: another one is another limit, with a count of its
own that begins when it is made. Only how much it allows can be changed, and that does not touch the count.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, Limit, Tenant
from tenants.policies.quota import Fault, Scope, alerts_fault, amount_fault, refill_fault, scope_fault
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput

LONGEST_BOOST: Final = timedelta(days=366)
MOST_LIMITS: Final = 200
"""Limits of one tenant, its keys' included: every request is held against those that take it in."""


@transaction.atomic
def create_limit(
    *,
    metric: str,
    window: str,
    amount: int,
    actor: Actor,
    tenant: Tenant | None = None,
    key: ApiKey | None = None,
    subtree: bool = False,
    model: str = "",
    refill_per_second: float | None = None,
    alert_shares: Sequence[int] = (),
    note: str = "",
) -> Limit:
    """At most `amount` of `metric` in `window`; see tenants.models.Limit. Without `tenant`, of the whole platform.

    Money is in millionths of the currency, GPU memory in bytes. What was used before does not count.
    Raises InvalidInput for what makes no sense (tenants.policies.quota), Conflict when there is such a limit already
    or the tenant has MOST_LIMITS of them.
    """
    _refuse(scope_fault(Scope(tenant is not None, subtree, key is not None, model), metric, window))
    if key is not None and tenant is not None and key.tenant_id != tenant.pk:
        raise InvalidInput("key", "The key belongs to another tenant.")
    _refuse(amount_fault(amount))
    _refuse(refill_fault(window, refill_per_second))
    _refuse(alerts_fault(window, alert_shares))
    if tenant is not None:
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # or two at once would both be the last one
        if Limit.objects.filter(tenant=tenant).count() >= MOST_LIMITS:
            raise Conflict(f"The tenant has {MOST_LIMITS} limits already.")
    limit = Limit(
        tenant=tenant,
        key=key,
        subtree=subtree,
        model=model,
        metric=metric,
        window=window,
        amount=amount,
        refill_per_second=refill_per_second,
        alert_shares=sorted(alert_shares),
        note=_note(note),
    )
    try:
        with transaction.atomic():
            limit.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict("There is a limit of this metric and window for the same scope already: change that.") from error
    _tell("limit.created", limit, actor, after=_scope(limit) | _amounts(limit))
    return limit


def lock_limit(limit_id: UUID) -> Limit:
    """The limit, its row locked until the transaction ends. Raises Limit.DoesNotExist."""
    return Limit.objects.select_for_update(of=("self",)).select_related("tenant", "key").get(pk=limit_id)


@transaction.atomic
def change_limit(
    limit_id: UUID,
    *,
    actor: Actor,
    amount: int | None = None,
    refill_per_second: float | None = None,
    alert_shares: Sequence[int] | None = None,
    note: str | None = None,
) -> Limit:
    """Allow more or less, from now on; None leaves a value as it is. A boost that is no more than the new amount ends.

    Below what is used already nothing passes until the window has room again. Raises Limit.DoesNotExist, InvalidInput.
    """
    limit = lock_limit(limit_id)
    before = _amounts(limit)
    if amount is not None:
        _refuse(amount_fault(amount))
        limit.amount = amount
        if limit.boost_amount is not None and limit.boost_amount <= amount:
            limit.boost_amount = limit.boost_until = None
    if refill_per_second is not None:
        _refuse(refill_fault(limit.window, refill_per_second))
        limit.refill_per_second = refill_per_second
    if alert_shares is not None:
        _refuse(alerts_fault(limit.window, alert_shares))
        limit.alert_shares = sorted(alert_shares)
    if note is not None:
        limit.note = _note(note)
    if _amounts(limit) != before:
        limit.save()
        _tell("limit.changed", limit, actor, before=before, after=_amounts(limit))
    return limit


@transaction.atomic
def boost_limit(limit_id: UUID, *, amount: int | None, until: datetime | None, actor: Actor) -> Limit:
    """Allow `amount` instead until `until`, when the limit is by itself what it was; None and None end it now.

    Raises Limit.DoesNotExist; InvalidInput when it is no more than the limit allows anyhow, or ends in the past or
    later than in a year.
    """
    limit = lock_limit(limit_id)
    before = _amounts(limit)
    if amount is not None:
        _refuse(amount_fault(amount))
        if amount <= limit.amount:
            raise InvalidInput("amount", f"The limit allows {limit.amount} anyhow.")
        if until is None:
            raise InvalidInput("until", "Say when it ends.")
        now = timezone.now()
        if not now < until <= now + LONGEST_BOOST:
            raise InvalidInput("until", "The end lies in the past, or more than a year ahead.")
    elif until is not None:
        raise InvalidInput("amount", "Say how much is allowed until then.")
    limit.boost_amount, limit.boost_until = amount, until
    if _amounts(limit) != before:
        limit.save(update_fields=["boost_amount", "boost_until"])
        _tell("limit.boosted" if amount is not None else "limit.boost_ended", limit, actor, before, _amounts(limit))
    return limit


@transaction.atomic
def delete_limit(limit_id: UUID, *, actor: Actor) -> None:
    """What it held back passes from now on. Raises Limit.DoesNotExist."""
    limit = lock_limit(limit_id)
    _tell("limit.deleted", limit, actor, before=_scope(limit) | _amounts(limit))
    Limit.objects.filter(pk=limit.pk).delete()


def _refuse(fault: Fault | None) -> None:
    if fault is not None:
        raise InvalidInput(fault.field, fault.message)


def _note(note: str) -> str:
    note = note.strip()
    if len(note) > 200 or "\x00" in note:
        raise InvalidInput("note", "A note has at most 200 characters.")
    return note


def _scope(limit: Limit) -> dict[str, Any]:
    return {
        "metric": limit.metric,
        "window": limit.window,
        "subtree": limit.subtree,
        "key": str(limit.key_id) if limit.key_id else None,
        "model": limit.model,
    }


def _amounts(limit: Limit) -> dict[str, Any]:
    return {
        "amount": limit.amount,
        "refill_per_second": limit.refill_per_second,
        "boost_amount": limit.boost_amount,
        "boost_until": limit.boost_until.isoformat() if limit.boost_until else None,
        "alert_shares": limit.alert_shares,
        "note": limit.note,
    }


def _tell(
    action: str,
    limit: Limit,
    actor: Actor,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record_audit(action, subject=limit, actor=actor, tenant_id=limit.tenant_id, before=before, after=after)
    bump_epoch(Section.LIMITS, limit.pk)

"""What is noticed by looking from time to time: budgets that fill up, and things that end soon.

Every function here may run twice, also at once: what was told is known by the notice's key.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Q

from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Grant, GrantEffect, Installation, Limit, TenantState, Window
from tenants.policies.alerts import ENDING_DAYS, KEY_DAYS, days_to_tell, share_to_tell
from tenants.policies.notices import NoticeKind
from tenants.policies.periods import Period
from tenants.reads.consumption import active_tenants, ancestors_of, period_of, used_in_period, zone_of
from tenants.reads.forecasts import ADDITIVE, CALENDAR, amount_in_force, forecast_limit
from tenants.services.notices import raise_notice


def calendar_budgets(active_since: datetime | None) -> Iterable[Limit]:
    """Limits by the day or month whose use adds up: all, or of tenants (and those above) active since then."""
    budgets = Limit.objects.filter(window__in=CALENDAR, metric__in=ADDITIVE).select_related("tenant", "key")
    if active_since is not None:
        active = active_tenants(active_since)
        budgets = budgets.filter(Q(tenant__isnull=True) | Q(tenant__in=ancestors_of(active)))
        if not active:
            return []
    return budgets.order_by("id").iterator()


def tell_budgets(*, now: datetime, active_since: datetime | None = None) -> int:
    """Tell of the shares of calendar budgets that were reached, each once a period; returns how many were.

    `active_since`: only budgets of tenants that used anything since then; None: all.
    """
    return sum(tell_budget(limit, used=used_in_period(limit, now), now=now) for limit in calendar_budgets(active_since))


def tell_budget(limit: Limit, *, used: int, now: datetime, refused: bool = False) -> bool:
    """Tell of the highest share that `used` reaches, if it was not told yet in this period.

    `refused`: requests are refused because of what others have reserved: the budget is as good as used up.
    """
    amount = amount_in_force(limit, now)
    reached = share_to_tell(used, amount, limit.alert_shares)
    share = 100 if refused else reached
    if share is None:
        return False
    period = period_of(limit, now)
    notice = raise_notice(
        NoticeKind.BUDGET_REFUSING if refused and reached != 100 else NoticeKind.BUDGET_SHARE,
        tenant=limit.tenant,
        payload=_budget_payload(limit, period, amount, used) | {"share": share},
        # Of a raised budget the shares are other amounts: they are told again.
        dedupe_key=f"budget:{limit.pk}:{int(period.start)}:{share}:{amount}",
        actor=SYSTEM,
    )
    return notice is not None


def tell_forecasts(*, now: datetime, active_since: datetime | None = None) -> int:
    """Tell of monthly budgets that will be used up before the month is over, each once a month; returns how many."""
    told = 0
    for limit in calendar_budgets(active_since):
        if limit.window != Window.MONTH:
            continue
        found = forecast_limit(limit, now)
        reached_on, expected = found.forecast.reached_on, found.forecast.expected
        if reached_on is None or expected is None or found.forecast.used >= found.amount:
            continue
        notice = raise_notice(
            NoticeKind.BUDGET_FORECAST,
            tenant=limit.tenant,
            payload=_budget_payload(limit, found.period, found.amount, found.forecast.used)
            | {"expected": expected, "reached_on": reached_on.isoformat()},
            dedupe_key=f"forecast:{limit.pk}:{int(found.period.start)}:{found.amount}",
            actor=SYSTEM,
        )
        told += notice is not None
    return told


def tell_expiring_keys(*, now: datetime) -> int:
    """Warn of keys that expire in 14, 3 and 1 days; returns how many warnings were new."""
    told = 0
    soon = now + timedelta(days=max(KEY_DAYS))
    keys = ApiKey.objects.filter(
        revoked_at__isnull=True, expires_at__gt=now, expires_at__lte=soon, tenant__state=TenantState.ACTIVE, purpose=""
    )
    for key in keys.select_related("tenant").order_by("id").iterator():
        assert key.expires_at is not None
        days = _days(key.expires_at, key.created_at, now, KEY_DAYS)
        if days is None:
            continue
        notice = raise_notice(
            NoticeKind.KEY_EXPIRING,
            tenant=key.tenant,
            payload={
                "key": str(key.pk),
                "name": key.name,
                "masked": key.masked,
                "days": days,
                **_end(key.expires_at, key.tenant.time_zone),
            },
            dedupe_key=f"key-expiring:{key.pk}:{int(key.expires_at.timestamp())}:{days}",
            actor=SYSTEM,
            person=key.created_by_id,
        )
        told += notice is not None
    return told


def tell_endings(*, now: datetime) -> int:
    """Warn of grants and raised limits that end in 3 days and in 1; returns how many warnings were new."""
    soon = now + timedelta(days=max(ENDING_DAYS))
    told = 0
    grants = Grant.objects.filter(expires_at__gt=now, expires_at__lte=soon, effect=GrantEffect.ALLOW)
    for grant in grants.select_related("tenant").order_by("id").iterator():
        assert grant.expires_at is not None
        days = _days(grant.expires_at, grant.created_at, now, ENDING_DAYS)
        if days is None:
            continue
        notice = raise_notice(
            NoticeKind.GRANT_ENDING,
            tenant=grant.tenant,
            payload={
                "grant": str(grant.pk),
                "model": grant.model_pattern,
                "days": days,
                **_end(grant.expires_at, grant.tenant.time_zone),
            },
            dedupe_key=f"grant-ending:{grant.pk}:{int(grant.expires_at.timestamp())}:{days}",
            actor=SYSTEM,
        )
        told += notice is not None
    boosts = Limit.objects.filter(boost_until__gt=now, boost_until__lte=soon)
    for limit in boosts.select_related("tenant", "key").order_by("id").iterator():
        assert limit.boost_until is not None
        days = _days(limit.boost_until, _boosted_at(limit), now, ENDING_DAYS)
        if days is None:
            continue
        notice = raise_notice(
            NoticeKind.BOOST_ENDING,
            tenant=limit.tenant,
            payload={
                **_limit_payload(limit),
                "amount": limit.amount,
                "boost_amount": limit.boost_amount,
                "days": days,
                **_end(limit.boost_until, zone_of(limit)),
            },
            dedupe_key=f"boost-ending:{limit.pk}:{int(limit.boost_until.timestamp())}:{days}",
            actor=SYSTEM,
        )
        told += notice is not None
    return told


def _days(ends_at: datetime, began_at: datetime, now: datetime, days: tuple[int, ...]) -> int | None:
    return days_to_tell(ends_at.timestamp(), began_at=began_at.timestamp(), now=now.timestamp(), days=days)


def _boosted_at(limit: Limit) -> datetime:
    """When the limit was raised, which only the audit log knows."""
    raised = AuditEvent.objects.filter(
        subject_type=Limit._meta.label, subject_id=limit.pk, action="limit.boosted"
    ).order_by("-id")
    return raised.values_list("at", flat=True).first() or limit.created_at


def _end(moment: datetime, zone: str) -> dict[str, str]:
    return {"ends_at": moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes"), "time_zone": zone}


def _limit_payload(limit: Limit) -> dict[str, Any]:
    scope = [limit.tenant.name if limit.tenant else "Gatehouse"]
    scope += [limit.key.name] if limit.key else []
    scope += [limit.model] if limit.model else []
    return {
        "limit": str(limit.pk),
        "metric": limit.metric,
        "window": limit.window,
        "scope": " / ".join(scope),
        "currency": Installation.objects.values_list("currency", flat=True).first() or "",
    }


def _budget_payload(limit: Limit, period: Period, amount: int, used: int) -> dict[str, Any]:
    zone = zone_of(limit)
    start, end = (
        datetime.fromtimestamp(moment, UTC).astimezone(ZoneInfo(zone)) for moment in (period.start, period.end)
    )
    return _limit_payload(limit) | {
        "amount": amount,
        "used": used,
        "period_start": start.isoformat(timespec="minutes"),
        "period_end": end.isoformat(timespec="minutes"),
        "time_zone": zone,
    }

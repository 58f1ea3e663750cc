"""Where a limit's running period is heading."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tenants.models import Limit, Metric, Tenant, Window
from tenants.policies.forecast import TRAILING_DAYS, Course, Forecast, days_of, forecast
from tenants.policies.periods import Period, period_at
from tenants.reads.consumption import period_of, used_daily, used_in_period, zone_of

CALENDAR = (Window.DAY, Window.MONTH)
ADDITIVE = (Metric.REQUESTS, Metric.TOKENS, Metric.INPUT_TOKENS, Metric.OUTPUT_TOKENS, Metric.MONEY)


@dataclass(frozen=True, slots=True)
class LimitForecast:
    """`amount` is the one in force."""

    limit: Limit
    period: Period
    amount: int
    forecast: Forecast


def amount_in_force(limit: Limit, now: datetime) -> int:
    if limit.boost_amount is not None and limit.boost_until is not None and now < limit.boost_until:
        return limit.boost_amount
    return limit.amount


def course_of(period: Period, zone: str, now: datetime) -> Course:
    """The days of a period in its zone, and where in them `now` lies."""
    tz = ZoneInfo(zone)
    first = datetime.fromtimestamp(period.start, tz).date()
    after = datetime.fromtimestamp(period.end, tz).date()
    today = period_at("day", zone, now.timestamp())
    passed = (now.timestamp() - today.start) / (today.end - today.start)
    return Course(days_of(first, after), datetime.fromtimestamp(today.start, tz).date(), passed)


def forecast_limit(limit: Limit, now: datetime) -> LimitForecast:
    """What a monthly limit's use will come to."""
    period = period_of(limit, now)
    amount = amount_in_force(limit, now)
    return LimitForecast(
        limit,
        period,
        amount,
        forecast(
            course_of(period, zone_of(limit), now),
            used=used_in_period(limit, now),
            daily=used_daily(limit, now, days=TRAILING_DAYS),
            amount=amount,
        ),
    )


def forecast_tenant(tenant: Tenant, now: datetime) -> dict[str, LimitForecast]:
    """The same for all that the tenant itself uses this month, by metric, whether limited or not."""
    found = {}
    for metric in (Metric.REQUESTS, Metric.TOKENS, Metric.MONEY):
        limitless = Limit(
            tenant=tenant, metric=metric, window=Window.MONTH, amount=0, counts_from=datetime.fromtimestamp(0, UTC)
        )
        told = forecast_limit(limitless, now)
        found[metric.value] = LimitForecast(
            limitless, told.period, 0, Forecast(told.forecast.used, told.forecast.linear, told.forecast.weekdays)
        )
    return found


def monthly_limits(tenant: Tenant) -> Iterator[Limit]:
    """Limits by the month whose use adds up: of the tenant and its keys."""
    limits = Limit.objects.filter(tenant=tenant, window=Window.MONTH, metric__in=ADDITIVE)
    return limits.select_related("tenant", "key").order_by("id").iterator()

"""A tenant's money of this month: spent, allowed, and where it is heading. One query of sums by day."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tenants.models import Limit, Metric, Tenant, Window
from tenants.policies.forecast import TRAILING_DAYS, Forecast, forecast
from tenants.policies.periods import last_days, period_at
from tenants.reads.consumption import family_of
from tenants.reads.forecasts import amount_in_force, course_of
from tenants.reads.usage import sum_usage


@dataclass(frozen=True, slots=True)
class Budget:
    """Millionths of the currency. `amount` None: nothing limits it. `alert_share`: the percent that is told of next."""

    month: datetime  # its first moment, in the tenant's zone
    forecast: Forecast
    amount: int | None
    alert_share: int | None

    @property
    def share(self) -> float | None:
        """Of the amount that is spent; None without a limit."""
        return self.forecast.used / self.amount if self.amount else None

    @property
    def tone(self) -> str:
        """Of its bar."""
        if self.share is None:
            return ""
        expected = self.forecast.expected
        over = expected is not None and self.amount is not None and expected > self.amount
        return "bad" if self.share >= 1 else "used" if self.share >= 0.8 or over else ""


def read_budget(tenant: Tenant, now: datetime) -> Budget:
    """By the rollups: requests that are under way, and what others in its departments' budgets use, are not in it.

    Of several monthly limits of money the tenant's own counts, then the one that takes in its departments.
    """
    limits = Limit.objects.filter(
        tenant=tenant, metric=Metric.MONEY, window=Window.MONTH, key__isnull=True, model=""
    ).order_by("subtree")
    limit = limits.first()
    zone = tenant.time_zone
    month, today = period_at("month", zone, now.timestamp()), period_at("day", zone, now.timestamp())
    first = datetime.fromtimestamp(month.start, ZoneInfo(zone))
    days = max(TRAILING_DAYS, (now.astimezone(ZoneInfo(zone)) - first).days + 1)
    starts = [datetime.fromtimestamp(start, UTC) for start in last_days(zone, today.start, days)]
    whose = family_of(tenant.pk) if limit is not None and limit.subtree else [tenant.pk]
    until = (now + timedelta(minutes=1)).replace(second=0, microsecond=0)
    rows = sum_usage(whose, starts=starts, until=until, by=["bucket"], sums=["cost_micros"])
    daily = {
        starts[row["bucket"]].astimezone(ZoneInfo(zone)).date(): row["cost_micros"]
        for row in rows
        if starts[row["bucket"]].timestamp() < today.start
    }
    used = sum(row["cost_micros"] for row in rows if starts[row["bucket"]].timestamp() >= month.start)
    amount = amount_in_force(limit, now) if limit is not None else None
    told = forecast(course_of(month, zone, now), used=used, daily=daily, amount=amount)
    share = used / amount * 100 if amount else 0.0
    ahead = [one for one in (limit.alert_shares if limit is not None else []) if one > share]
    return Budget(first, told, amount, min(ahead, default=None))

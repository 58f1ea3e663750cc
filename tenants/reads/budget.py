"""A tenant's money of this month: spent, allowed, and where it is heading. From sums by day."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Sum

from tenants.models import Limit, Metric, Tenant, TenantDay, Window
from tenants.policies.forecast import TRAILING_DAYS, Forecast, forecast
from tenants.policies.periods import period_at
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

    Of several monthly limits of money the tenant's own counts, then the one that takes in its departments. For the
    weekdays' rhythm days of UTC stand for the zone's: those are hours' sums, a hundred times as many rows.
    """
    limits = Limit.objects.filter(
        tenant=tenant, metric=Metric.MONEY, window=Window.MONTH, key__isnull=True, model=""
    ).order_by("subtree")
    limit = limits.first()
    zone = ZoneInfo(tenant.time_zone)
    month = period_at("month", tenant.time_zone, now.timestamp())
    first = datetime.fromtimestamp(month.start, zone)
    whose = family_of(tenant.pk) if limit is not None and limit.subtree else [tenant.pk]
    until = (now + timedelta(minutes=1)).replace(second=0, microsecond=0)
    rows = sum_usage(whose, starts=[first], until=until, by=[], sums=["cost_micros"])
    used = rows[0]["cost_micros"] if rows else 0
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = TenantDay.objects.filter(
        tenant_id__in=whose, day__gte=midnight - timedelta(days=TRAILING_DAYS), day__lt=midnight
    )
    daily = {row["day"].date(): row["n"] for row in days.values("day").annotate(n=Sum("cost_micros")).order_by()}
    amount = amount_in_force(limit, now) if limit is not None else None
    told = forecast(course_of(month, tenant.time_zone, now), used=used, daily=daily, amount=amount)
    share = used / amount * 100 if amount else 0.0
    ahead = [one for one in (limit.alert_shares if limit is not None else []) if one > share]
    return Budget(first, told, amount, min(ahead, default=None))

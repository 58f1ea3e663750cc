"""The control API of where a month is heading."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.access import tenant_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object
from tenants.reads.consumption import zone_of
from tenants.reads.forecasts import LimitForecast, forecast_limit, forecast_tenant, monthly_limits


class ForecastSerializer(serializers.Serializer[Any]):
    """Amounts in the metric's units, money in millionths of the currency; null where nothing can be said yet."""

    limit_id = serializers.UUIDField(allow_null=True, help_text="Null: of all that the tenant itself uses.")
    metric = serializers.CharField()
    model = serializers.CharField(help_text="Empty: of all models.")
    period_start = serializers.DateTimeField()
    period_end = serializers.DateTimeField()
    amount = serializers.IntegerField(allow_null=True, help_text="The limit's.")
    used = serializers.IntegerField()
    expected = serializers.IntegerField(allow_null=True, help_text="By the end, by the better of the two ways.")
    linear = serializers.IntegerField(allow_null=True, help_text="By the line through this period.")
    weekdays = serializers.IntegerField(allow_null=True, help_text="By the mean of each weekday in four weeks.")
    reached_on = serializers.DateField(allow_null=True, help_text="The day on which the limit is reached.")


class ForecastsSerializer(serializers.Serializer[Any]):
    forecasts = ForecastSerializer(many=True)


class ForecastView(ControlView):
    """Where the running month is heading."""

    @extend_schema(responses=ForecastsSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Of the tenant as a whole, and of each of its monthly limits."""
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.USAGE)
        now = timezone.now()
        found = [*forecast_tenant(tenant, now).values()]
        found += [forecast_limit(limit, now) for limit in monthly_limits(tenant)]
        return Response(ForecastsSerializer({"forecasts": [_told(one) for one in found]}).data)


def _told(found: LimitForecast) -> dict[str, Any]:
    zone = ZoneInfo(zone_of(found.limit))
    limited = found.amount > 0
    return {
        "limit_id": found.limit.pk if limited else None,
        "metric": found.limit.metric,
        "model": found.limit.model,
        "period_start": datetime.fromtimestamp(found.period.start, UTC).astimezone(zone),
        "period_end": datetime.fromtimestamp(found.period.end, UTC).astimezone(zone),
        "amount": found.amount if limited else None,
        "used": found.forecast.used,
        "expected": found.forecast.expected,
        "linear": found.forecast.linear,
        "weekdays": found.forecast.weekdays,
        "reached_on": found.forecast.reached_on,
    }

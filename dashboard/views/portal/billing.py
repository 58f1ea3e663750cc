"""Portal: what a month costs, line by line, what was adjusted, and the price list; for those who may see money."""

from datetime import UTC, date, datetime
from typing import Any, Final

from django.db.models import Q, Sum
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from core.api.csv import csv_response
from dashboard.access import PortalAccess, portal_page
from dashboard.reads.portal_models import list_models
from dashboard.tables import is_csv
from gpupool.models import ModelVersion
from tenants.models import Adjustment, Price, Tenant
from tenants.policies.periods import month_period
from tenants.policies.roles import Action, Object
from tenants.reads.usage import sum_usage
from tenants.statements import COLUMNS, build_statement, list_months, statement_rows

LINES_SHOWN: Final = 100
MONTHS_SHOWN: Final = 12


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    access.require(Action.VIEW, Object.STATEMENT)
    now = timezone.now()
    months = list_months(access.tenant, now=now, at_most=MONTHS_SHOWN)
    wanted = request.GET.get("month", "") or months[0]
    shown = {} if is_csv(request) else {"named": LINES_SHOWN}
    try:
        statement = build_statement(access.tenant, wanted, now=now, **shown)
    except ValueError as error:
        raise Http404 from error
    if is_csv(request):
        name = f"{access.tenant.slug}-{statement.month}.csv"
        response: HttpResponseBase = csv_response(request, name, COLUMNS, statement_rows(statement))
        return response
    return render(
        request,
        "portal/billing.html",
        {
            "access": access,
            "statement": statement,
            "month": _first_day(statement.month),
            "lines": statement.lines[:LINES_SHOWN],
            "lines_left": max(0, len(statement.lines) - LINES_SHOWN),
            "months": _totals(access.tenant, months, now),
            "prices": _prices(access.tenant, now),
        },
    )


def _first_day(month: str) -> date:
    """No moment: west of UTC, the month's first one there would be shown as the month before."""
    return date.fromisoformat(f"{month}-01")


def _totals(tenant: Tenant, months: list[str], now: datetime) -> list[dict[str, Any]]:
    """Usage, adjustments and total of each month, newest first: two queries."""
    periods = [month_period(tenant.time_zone, month) for month in reversed(months)]
    starts = [datetime.fromtimestamp(period.start, UTC) for period in periods]
    until = datetime.fromtimestamp(periods[-1].end, UTC)
    used = {
        months[-1 - row["bucket"]]: row["cost_micros"]
        for row in sum_usage([tenant.pk], starts=starts, until=until, by=["bucket"], sums=["cost_micros"])
    }
    rows = Adjustment.objects.filter(tenant_id=tenant.pk, month__in=months).values("month")
    adjusted = {row["month"]: row["n"] for row in rows.annotate(n=Sum("amount_micros")).order_by()}
    return [
        {
            "month": month,
            "at": _first_day(month),
            "usage": used.get(month, 0),
            "adjusted": adjusted.get(month, 0),
            "total": used.get(month, 0) + adjusted.get(month, 0),
        }
        for month in months
    ]


def _prices(tenant: Tenant, now: datetime) -> list[Price]:
    """In effect, of what the tenant may call: of each model, and of versions with prices of their own.

    What another tenant's own version costs is between that tenant and the platform.
    """
    rows, told = list_models(tenant, now)
    names = [name for pk, name in rows.order_by().values_list("pk", "name") if told[pk].granted]
    versions = ModelVersion.objects.filter(Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk), model__name__in=names)
    mine = Q(version_id__isnull=True) | Q(version_id__in=versions.values("pk"))
    found = Price.objects.filter(mine, model__in=names, effective_from__lte=now)
    return list(found.order_by("model", "version_id", "-effective_from").distinct("model", "version_id"))

"""Portal: what was used, from rollups."""

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.access import PortalAccess, portal_page
from dashboard.charts.usage import DEFAULT_RANGE, RANGES, bucket_starts, sparkline, token_figure, token_series
from tenants.reads.usage import usage_by_key, usage_series, usage_totals

KEY_LIMIT = 50
"""Keys in the table by key."""

MERGED_BUCKETS = 30
"""Bars of a sparkline; more would be thinner than a pixel."""


def _merge(values: list[int]) -> list[int]:
    """At most MERGED_BUCKETS sums of neighbours."""
    size = -(-len(values) // MERGED_BUCKETS)
    return [sum(values[start : start + size]) for start in range(0, len(values), size)]


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    chosen = RANGES.get(request.GET.get("range", ""), RANGES[DEFAULT_RANGE])
    zone = _zone(request.GET.get("zone", ""), default=access.tenant.time_zone)
    now = timezone.now()
    starts = bucket_starts(chosen, now=now, zone=zone)
    series = token_series(
        usage_series(access.tenant.pk, starts=starts, until=now), buckets=len(starts), other=_("Other models")
    )
    keys = usage_by_key(access.tenant.pk, starts=starts, until=now, limit=KEY_LIMIT + 1)
    context = {
        "access": access,
        "chosen": chosen.name,
        "ranges": [(name, _range_word(name)) for name in RANGES],
        "zone": zone.key,
        "zones": list(dict.fromkeys([access.tenant.time_zone, "UTC", zone.key])),
        "now": now,
        "totals": usage_totals(access.tenant.pk, since=starts[0], until=now),
        "series": series,
        "figure": token_figure(series, starts),
        "table": [(start, [one.tokens[i] for one in series]) for i, start in enumerate(starts)],
        "keys": [(key, sparkline(_merge(list(key.by_bucket)))) for key in keys[:KEY_LIMIT]],
        "key_limit": KEY_LIMIT if len(keys) > KEY_LIMIT else None,
    }
    with timezone.override(zone):
        return render(request, "portal/usage.html", context)


def _zone(name: str, *, default: str) -> ZoneInfo:
    """The zone that the address names, the tenant's where it names none that exists."""
    return ZoneInfo(name if name in _zone_names() else default)


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())  # reads hundreds of files


def _range_word(name: str) -> str:
    return {"1h": _("1 h"), "24h": _("24 h"), "7d": _("7 d"), "30d": _("30 d")}[name]

"""Portal: limits in force and how they stand, what they refused, and asking for more."""

from typing import Final

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.access import PortalAccess, portal_page
from dashboard.charts.usage import RANGES, bucket_starts, buckets_between, token_figure
from dashboard.ranges import read_range
from dashboard.reads.portal_limits import KEY_RATES, read_limits
from dashboard.reads.refusals_over_time import GROUPS, read_history
from tenants.policies.roles import Action, Object
from tenants.reads.notices import list_requests

ASKED_SHOWN: Final = 5


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """Everything on one page: what is full, since when it refuses, and whether more was asked for."""
    now = timezone.now()
    span = read_range(request, now=now, home_zone=access.tenant.time_zone, choices=tuple(RANGES), default="24h")
    starts = (
        bucket_starts(RANGES[span.name], now=now, zone=span.zone)
        if span.name
        else buckets_between(span.since, span.until, zone=span.zone)
    )
    group = request.GET.get("group", "")
    group = group if group in GROUPS else "limit"
    history = read_history(
        access.tenant, starts=starts, until=span.until, group=group, other=_("Others"), keyless=_("Without a key")
    )
    limits = read_limits(access.tenant, now)
    with timezone.override(span.zone):
        return render(
            request,
            "portal/limits.html",
            {
                "access": access,
                "now": now,
                "range": span,
                "zone": span.zone.key,
                "limits": limits,
                "unknown": any(one.share is None for one in limits),
                "key_rates": KEY_RATES if sum(one.scope == "rate" for one in limits) >= KEY_RATES else None,
                "group": group,
                "groups": [("limit", _("Limit")), ("key", _("Key")), ("model", _("Model"))],
                "history": history,
                "series": history.series,
                "figure": token_figure(history.series, starts),
                "running": span.until >= now,
                "table": [(start, [one.tokens[place] for one in history.series]) for place, start in enumerate(starts)],
                "may_ask": access.may(Action.CREATE, Object.REQUEST),
                "asked": list(list_requests(access.tenant).select_related("requested_by")[:ASKED_SHOWN]),
            },
        )

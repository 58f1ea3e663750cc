"""Portal: what was used, from rollups. Whoever belongs to the tenant sees it, over its budget or not."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django_htmx.middleware import HtmxDetails

from dashboard.access import PortalAccess, portal_page
from dashboard.charts.usage import (
    DEFAULT_RANGE,
    RANGES,
    bucket_starts,
    buckets_between,
    sparkline,
    step_of,
    token_figure,
)
from dashboard.filters import search_text
from dashboard.ranges import TimeRange, read_range
from dashboard.reads import usage as reads
from dashboard.reads.portal_limits import nearest, read_limits
from dashboard.reads.usage import (
    GROUPS,
    KEPT_SECONDS,
    MEASURES,
    KeyLine,
    UsageAsk,
    has_many_keys,
    read_key_lines,
    read_usage,
    usage_rows,
    usage_rows_by_bucket,
)
from dashboard.request_filters import uuid_in
from dashboard.tables import CSV_LIMIT, Facet, ask_worker, is_csv, line_of, sink_of_worker
from dashboard.tables.table import Filtered
from tenants.models import ApiKey, User
from tenants.policies.money import amount_of
from tenants.reads.budget import read_budget
from tenants.reads.usage import Only

MERGED_BUCKETS = 30
"""Bars of a sparkline; more would be thinner than a pixel."""

LIMITS_SHOWN: Final = 5
_KEPT: Final = ("range", "from", "to", "zone", "group", "show", "key")


def merged(values: Sequence[int]) -> list[int]:
    """At most MERGED_BUCKETS sums of neighbours."""
    size = -(-len(values) // MERGED_BUCKETS)
    return [sum(values[start : start + size]) for start in range(0, len(values), size)] if size else []


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    now = timezone.now()
    span = read_range(request, now=now, home_zone=access.tenant.time_zone, choices=tuple(RANGES), default=DEFAULT_RANGE)
    ask = _ask(request, access, span, now)
    with timezone.override(span.zone):
        if is_csv(request):
            return _csv(request, ask)
        if request.GET.get("part") == "keys" and HtmxDetails(request):
            lines, more = read_key_lines(ask)
            context = {"access": access, **_key_lines(ask, lines, more)}
            return render(request, "portal/_usage_keys.html", context)
        return _page(request, access, span, ask, now)


def _page(request: HttpRequest, access: PortalAccess, span: TimeRange, ask: UsageAsk, now: datetime) -> HttpResponse:
    later = "part" not in request.GET and ask.group != "key" and ask.many_keys
    found = read_usage(
        ask,
        with_keys=not later,
        other={"model": _("Other models"), "key": _("Other keys"), "member": _("Others")}[ask.group],
        keyless=_("Without a key"),
        nobody=_("Nobody’s key, or a token"),
    )
    limits = read_limits(access.tenant, now, rates=0)
    budget = read_budget(access.tenant, now)
    only = ask.only
    key = ApiKey.objects.filter(tenant=access.tenant, pk=only.key_id).first() if only.key_id else None
    filtered = Filtered(
        search=only.key_name,
        placeholder=_("Key’s name"),
        facets=[
            Facet.read(request, "model", _("Model"), [(name, name) for name in found.models], all_label=_("All")),
        ],
    )
    kept = [(name, request.GET[name]) for name in _KEPT if request.GET.get(name)]
    context = {
        "access": access,
        "now": now,
        "range": span,
        "chosen": span.name,
        "zone": span.zone.key,
        "filtered": filtered,
        "kept": kept,
        "only_key": key,
        "groups": [("model", _("Model")), ("key", _("Key")), ("member", _("Member"))],
        "measures": [("tokens", _("Tokens")), ("requests", _("Requests")), ("cost", _("Cost"))],
        "group": ask.group,
        "measure": ask.measure,
        "kept_minutes": KEPT_SECONDS // 60 if ask.many_keys and ask.group == "member" else None,
        "usage": found,
        "totals": found.totals,
        "budget": budget,
        "budget_month": budget.month.date(),  # the tenant's month, whatever zone the page is looked at in
        "series": found.series,
        "chart_title": _title(ask),
        "figure": token_figure(found.series, ask.starts, money=ask.measure == "cost"),
        "running": ask.running,
        "table": [(start, [one.tokens[place] for one in found.series]) for place, start in enumerate(ask.starts)],
        **_key_lines(ask, found.keys, found.more_keys),
        "keys_at": _keys_at(request) if later and found.totals.requests else "",
        "limits": nearest([one for one in limits if one.share is not None], LIMITS_SHOWN),
        "any_limits": bool(limits),
    }
    return render(request, "portal/usage.html", context)


def _key_lines(ask: UsageAsk, lines: Sequence[KeyLine], more: bool) -> dict[str, Any]:
    return {
        "ranked_minutes": KEPT_SECONDS // 60 if ask.many_keys else None,
        "keys": [(line, sparkline(merged(line.by_bucket))) for line in lines],
        "key_limit": reads.KEY_LIMIT if more else None,
    }


def _keys_at(request: HttpRequest) -> str:
    """The address of the keys alone for htmx, and of the page with them for a browser without scripts."""
    query = request.GET.copy()
    query["part"] = "keys"
    return f"{request.path}?{query.urlencode()}"


def _ask(request: HttpRequest, access: PortalAccess, span: TimeRange, now: datetime) -> UsageAsk:
    group, measure = request.GET.get("group", ""), request.GET.get("show", "")
    starts = (
        bucket_starts(RANGES[span.name], now=now, zone=span.zone)
        if span.name
        else buckets_between(span.since, span.until, zone=span.zone)
    )
    return UsageAsk(
        tenant=access.tenant,
        starts=starts,
        until=span.until,
        group=group if group in GROUPS else "model",
        measure=measure if measure in MEASURES else "tokens",
        only=Only(
            model=request.GET.get("model", "").replace("\x00", "")[:200],
            key_id=uuid_in(request, "key"),
            key_name=search_text(request),
        ),
        many_keys=has_many_keys(access.tenant),
        running=span.until >= now,
    )


def _title(ask: UsageAsk) -> str:
    what = {"tokens": _("Tokens"), "requests": _("Requests"), "cost": _("Cost")}[ask.measure]
    by = {"model": _("by model"), "key": _("by key"), "member": _("by member")}[ask.group]
    return (
        _("%(what)s a day, %(by)s") % {"what": what, "by": by}
        if step_of(ask.starts) >= timedelta(hours=23)
        else _("%(what)s %(by)s") % {"what": what, "by": by}
    )


_COLUMNS: Final = (
    "from", "name", "id", "requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "cost",
)  # fmt: skip


def _csv(request: HttpRequest, ask: UsageAsk) -> HttpResponse:
    """Sums by bucket and group, as the chart groups them; all groups, not the largest alone.

    Written at once: what is written while it is sent does not know the page's zone. What is too long for that a worker
    writes, a bucket at a time.
    """
    sink = sink_of_worker()
    if sink is not None:
        sink(_lines(ask, usage_rows_by_bucket(ask)))
        return HttpResponse(status=200)
    rows = usage_rows(ask, limit=CSV_LIMIT + 1)
    if len(rows) > CSV_LIMIT:  # a range up to now would be a later one once it is written
        pinned = {"from": ask.starts[0].isoformat(), "to": ask.until.isoformat()}
        return ask_worker(f"usage-by-{ask.group}", request, pinned=pinned)
    response = HttpResponse("".join(_lines(ask, [rows])), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{ask.tenant.slug}-usage-by-{ask.group}.csv"'
    return response


def _lines(ask: UsageAsk, pieces: Iterable[Sequence[dict[str, Any]]]) -> Iterator[str]:
    yield line_of(_COLUMNS)
    column = GROUPS[ask.group]
    names: dict[Any, str] = {}
    for rows in pieces:
        names |= _names(ask, {row[column] for row in rows} - names.keys() - {None})
        for row in rows:
            value = row[column]
            yield line_of(
                [
                    ask.starts[row["bucket"]],
                    value if ask.group == "model" else names.get(value, ""),
                    "" if ask.group == "model" or value is None else str(value),
                    *(row[name] for name in _COLUMNS[3:8]),
                    amount_of(row["cost_micros"]),
                ]
            )


def _names(ask: UsageAsk, wanted: set[Any]) -> dict[Any, str]:
    """Of keys or members; of what there is no more there is none."""
    if ask.group == "key":
        return dict(ApiKey.objects.filter(pk__in=wanted).values_list("pk", "name")) if wanted else {}
    if ask.group == "member":
        return {pk: str(person) for pk, person in User.objects.in_bulk(wanted).items()}
    return {}

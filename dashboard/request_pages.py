"""The pages of requests, the same in console and portal: the log, one request, and where the time went."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard import labels
from dashboard.filters import row_before
from dashboard.ranges import TimeRange, read_range
from dashboard.reads.requests import lines_of, longest_ms, stages_of, tpot_ms, version_name
from dashboard.request_filters import Asked, read_asked, tier_chip, tier_in, total_of, uuid_in
from dashboard.request_side import Side
from dashboard.tables import Column, Table, csv_response, is_csv
from tenants.models import ApiKey, Tenant, UsageRecord
from tenants.policies.money import amount_of
from tenants.reads.latency import LatencySums, all_models, busiest_tenants, latency_by_model
from tenants.reads.refusals import refusals_by_reason
from tenants.reads.request_log import SLOW_MS, SLOW_TTFT_MS, all_requests, find_requests, get_request
from tenants.reads.stages import MODELS, SAMPLE, latency_flame, stage_table

CHOICES: Final = ("15m", "1h", "6h", "24h", "7d", "30d")
_TENANTS: Final = 20
_KEYS: Final = 50


def _cell(name: str) -> Column:
    return Column(key=name, value=lambda row: getattr(row, name))


def _sheet(side: Side, tenants: dict[UUID, str]) -> Table:
    """The columns of the file. People's own words are none of them but the names of tenants."""
    own = () if side.portal else (Column(key="tenant", value=lambda row: tenants.get(row.tenant_id, "")),)
    return Table(
        name="portal-requests" if side.portal else "console-requests",
        sort="-at",
        columns=(
            Column(key="at", order="pk", value=lambda row: row.started_at),
            _cell("id"),
            *own,
            *map(
                _cell, ("key_id", "model", "version_id", "outcome", "status", "error_code", "door", "api", "streamed")
            ),
            *map(_cell, ("input_tokens", "cached_tokens", "output_tokens", "usage_source")),
            Column(key="cost", value=lambda row: amount_of(row.cost_micros)),
            *map(_cell, ("duration_ms", "ttft_ms")),
            Column(key="tpot_ms", value=tpot_ms),
            *map(_cell, ("queue_ms", "tokenise_ms", "connect_ms", "first_decode_ms", "attempts")),
            *map(_cell, ("instance_id", "engine_request_id")),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """What the filter bar's saved views ask of a page."""

    table: Table


def _span(request: HttpRequest, side: Side, now: datetime) -> TimeRange:
    zone = side.tenant.time_zone if side.tenant else timezone.get_current_timezone_name()
    return read_range(request, now=now, home_zone=zone, choices=CHOICES, default="1h")


def _tenant_asked(request: HttpRequest, side: Side) -> Tenant | None:
    """Whose requests are asked for. Raises Http404 where there is no such tenant."""
    slug = request.GET.get("tenant", "").replace("\x00", "")
    tenant = side.tenant or Tenant.objects.filter(slug=slug).first()
    if slug and tenant is None:
        raise Http404  # all tenants' requests are not what was asked for
    return tenant


def log_page(request: HttpRequest, side: Side) -> HttpResponse:
    """The log. A search for an id leads to the request where there is one."""
    now = timezone.now()
    span = _span(request, side, now)
    tenant = _tenant_asked(request, side)
    sums = latency_by_model(
        since=span.since, until=span.until, tenant_id=tenant.pk if tenant else None, of=("ttft", "tpot", "queue")
    )
    tenants: list[tuple[Tenant, int]] = []
    if not side.portal:
        busiest = busiest_tenants(until=span.until, most=_TENANTS)
        found = Tenant.objects.in_bulk([pk for pk, _n in busiest])
        tenants = [(found[pk], n) for pk, n in busiest if pk in found]
    asked = read_asked(
        request,
        span,
        sums=sums,
        tenant=tenant,
        tenants=tenants,
        keys=_keys(tenant, uuid_in(request, "key")),
        portal=side.portal,
    )
    if (led := _led_to(request, side, asked)) is not None:
        return led
    with timezone.override(span.zone):
        if is_csv(request):
            slugs = {} if side.portal else dict(Tenant.objects.values_list("pk", "slug"))
            return csv_response(_sheet(side, slugs), request, all_requests(asked.wanted))
        found_page = find_requests(asked.wanted, before=row_before(request), after=uuid_in(request, "after"))
        lines = lines_of(found_page.rows)
        exact = all_requests(asked.wanted).count() if request.GET.get("count") == "exact" else None
        whole = all_models(sums) if sums else None
        first = row_before(request) is None and uuid_in(request, "after") is None
        context = {
            "side": side,
            "access": getattr(request, "portal", None),
            "range": span,
            "now": now,
            "tab": "log",
            "page": _Page(_sheet(side, {})),
            "filtered": asked.filtered,
            "kept": asked.kept,
            "chips": asked.chips,
            "found": found_page,
            "lines": lines,
            "longest": longest_ms(lines),
            "first": first,
            "total": total_of(asked.wanted, sums),
            "exact": exact,
            "unfound": asked.filtered.search,
            "narrowed": asked.wanted.narrowed or (tenant is not None and not side.portal),
            "whole": whole,
            "figures": {} if whole is None else {of: _figures(whole, of) for of in ("ttft", "tpot", "queue")},
            "names_of_stages": list(labels.STAGES),
            # Who is of a tier is known to the database alone, not to what comes live.
            "tail": _tail(side, asked, tenant) if first and span.name and not asked.wanted.tier else None,
        }
        return render(request, "requests/log.html", context)


def _figures(whole: LatencySums, of: str) -> tuple[float | None, float | None]:
    """The median and P99, in milliseconds."""
    return whole.quantile_ms(of, 0.5), whole.quantile_ms(of, 0.99)


def _keys(tenant: Tenant | None, chosen: UUID | None) -> list[ApiKey]:
    """Those used last, and the chosen one, of the tenant alone."""
    if tenant is None:
        return []
    keys = list(ApiKey.objects.filter(tenant=tenant, last_used_at__isnull=False).order_by("-last_used_at")[:_KEYS])
    if chosen is not None and all(key.pk != chosen for key in keys):
        keys += ApiKey.objects.filter(tenant=tenant, pk=chosen)
    return keys


def _led_to(request: HttpRequest, side: Side, asked: Asked) -> HttpResponse | None:
    """Where a search leads: to one request, or to a tenant's."""
    if asked.request_id is not None:
        tenant_id = side.tenant.pk if side.tenant else None
        if get_request(asked.request_id, tenant_id=tenant_id) is not None:
            return redirect(side.address("request", asked.request_id))
        return None
    if asked.filtered.search and not side.portal:
        tenant = Tenant.objects.filter(slug=asked.filtered.search.lower()).first()
        if tenant is not None:
            query = request.GET.copy()
            query.pop("q", None)
            query["tenant"] = tenant.slug
            return redirect(f"{request.path}?{query.urlencode()}")
    return None


def _tail(side: Side, asked: Asked, tenant: Tenant | None) -> dict[str, object]:
    """What the page's script watches, and which of the rows it shows."""
    wanted = asked.wanted
    return {
        "scope": f"tenant:{tenant.slug}" if tenant else "",
        "streamed": _("streamed"),
        "address": side.address("request", UUID(int=0)),
        "key": str(wanted.key_id or ""),
        "model": wanted.model,
        "version": str(wanted.version_id or ""),
        "instance": str(wanted.instance_id or ""),
        "outcome": wanted.outcome,
        "status": wanted.status,
        "class": wanted.status_class,
        "code": wanted.error_code,
        "door": wanted.door,
        "api": wanted.api,
        "slow": [SLOW_TTFT_MS, SLOW_MS] if wanted.slow else None,
        "min": {
            "ttft": wanted.min_ttft_ms,
            "tpot": wanted.min_tpot_ms,
            "queue": wanted.min_queue_ms,
            "duration": wanted.min_duration_ms,
        },
    }


def one_page(request: HttpRequest, side: Side, request_id: UUID) -> HttpResponse:
    """One request, with its time drawn stage by stage."""
    row = get_request(request_id, tenant_id=side.tenant.pk if side.tenant else None)
    if row is None:
        raise Http404
    line = lines_of([row])[0]
    return render(
        request,
        "requests/one.html",
        {
            "side": side,
            "access": getattr(request, "portal", None),
            "line": line,
            "row": row,
            "version": version_name(row.version_id),
            "whole": row.duration_ms or 1.0,
            "unmeasured": _unmeasured(row),
            "zone": timezone.get_current_timezone_name(),
        },
    )


def _unmeasured(row: UsageRecord) -> float | None:
    """Milliseconds of its time that belong to no stage."""
    if row.duration_ms is None:
        return None
    left = row.duration_ms - sum(stage.ms for stage in stages_of(row))
    return left if left > 0.5 else None


def stages_page(request: HttpRequest, side: Side) -> HttpResponse:
    """Quantiles of each stage by model, and the slowest percent as a flame."""
    now = timezone.now()
    span = _span(request, side, now)
    tenant_id = side.tenant.pk if side.tenant else None
    with timezone.override(span.zone):
        sums = latency_by_model(since=span.since, until=span.until, tenant_id=tenant_id, of=())
        named = [one.model for one in sums][:MODELS]
        chosen = request.GET.get("model", "")
        looked = [chosen] if chosen in named else named
        models = stage_table(since=span.since, until=span.until, models=named, tenant_id=tenant_id)
        flame = latency_flame(since=span.since, until=span.until, models=looked, tenant_id=tenant_id)
        context = {
            "side": side,
            "access": getattr(request, "portal", None),
            "range": span,
            "now": now,
            "tab": "stages",
            "models": models,
            "sums": {one.model: one for one in sums},
            "sample": SAMPLE,
            "more_models": max(0, len(sums) - MODELS),
            "chosen": chosen if chosen in named else "",
            "names": named,
            "flame": flame,
            "pairs": []
            if flame is None
            else [(name, slow, usual) for (name, slow), (_n, usual) in zip(flame.slow_ms, flame.all_ms, strict=True)],
        }
        return render(request, "requests/stages.html", context)


def refused_page(request: HttpRequest, side: Side) -> HttpResponse:
    """What was refused before it was forwarded, by reason; of what the address names, if it does."""
    now = timezone.now()
    span, tenant = _span(request, side, now), _tenant_asked(request, side)
    tier = "" if side.portal else tier_in(request)
    model = request.GET.get("model", "").replace("\x00", "").strip()[:200]
    status_class = int(found) if (found := request.GET.get("class", "")) in ("4", "5") else None
    reasons = refusals_by_reason(
        since=span.since,
        until=span.until,
        tenant_id=tenant.pk if tenant else None,
        tier=tier,
        model=model,
        status_class=status_class,
        most=200,
    )
    chips = [(tenant.name, "tenant")] if tenant is not None and not side.portal else []
    chips += [(tier_chip(tier), "tier")] if tier else []
    chips += [(model, "model")] if model else []
    chips += [(f"{status_class}xx", "class")] if status_class else []
    keys = ApiKey.objects.select_related("tenant").in_bulk({one.key_id for one in reasons} - {None})
    with timezone.override(span.zone):
        context = {
            "side": side,
            "access": getattr(request, "portal", None),
            "range": span,
            "now": now,
            "tab": "refused",
            "reasons": [(one, keys.get(one.key_id) if one.key_id else None) for one in reasons],
            "cut": len(reasons) == 200,
            "chips": chips,
        }
        return render(request, "requests/refused.html", context)

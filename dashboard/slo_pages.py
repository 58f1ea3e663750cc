"""What the pages of objectives in console and portal have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.http import Http404, HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.charts.slo import DEFAULT_SPAN, LONGEST_SPAN, SPANS, span_between, span_of
from dashboard.filters import search_text
from dashboard.ranges import TimeRange, read_range
from dashboard.reads.slo import Detail, Row, read_board, read_detail
from dashboard.reads.slo_list import Listed
from dashboard.request_side import Side
from dashboard.slo_words import ALERT_STATES, SEVERITIES, silenced_text, windows_text
from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.policies.slo_alerts import AlertState
from gpupool.models import ModelVersion
from tenants.models import Tenant
from tenants.reads.request_log import FAULT

MOST_RELEASES: Final = 200
TENANTS: Final = "tenants"
"""In `?of=`: the console lists what tenants set up themselves, not what is the platform's."""
_LEAST: Final = {"ttft": "min_ttft_ms", "tpot": "min_tpot_ms", "queue_wait": "min_queue_ms"}
"""What the request log calls the time that each kind is about."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages are: in the console, or in one tenant's portal."""

    tenant: Tenant | None = None

    def url(self, name: str = "", *args: object) -> str:
        """The address of one of the pages, such as "edit"."""
        area, before = ("console", []) if self.tenant is None else ("portal", [self.tenant.slug])
        return reverse(f"{area}-slo-{name}" if name else f"{area}-slo", args=[*before, *args])

    def may_change(self, objective: Objective, *, manages: bool) -> bool:
        """Who manages a tenant changes what it set up itself; who operates the platform changes all."""
        return manages and (self.tenant is None or objective.tenants_own)


@dataclass(frozen=True, slots=True)
class AlertRow:
    alert: ObjectiveAlert
    acknowledge: str  # where to post; "": nothing to acknowledge, or not theirs to do

    @property
    def state_word(self) -> object:
        return ALERT_STATES[self.alert.state]

    @property
    def severity_word(self) -> object:
        return SEVERITIES[self.alert.severity]

    @property
    def tone(self) -> str:
        if self.alert.state == AlertState.RESOLVED.value:
            return "idle"
        return "bad" if self.alert.severity == "page" else "warn"

    @property
    def pair(self) -> str:
        return windows_text(self.alert.pair)


@dataclass(frozen=True, slots=True)
class SilenceRow:
    """One silence over the objective, to whoever's page it is."""

    silence: Silence
    end: str  # where to post; "": not theirs to end
    what: str
    later: bool  # it has not begun
    reason: str  # "": a tenant is not told the platform's


def board_context(
    request: HttpRequest, listed: Listed, chosen_id: UUID | None, place: Place, *, manages: bool
) -> dict[str, Any]:
    """Raises Http404 where the chosen one is none of them.

    One that is on another page of the list stands on the first, too: there addresses of one lead, as notices have them.
    """
    now = timezone.now()
    span = read_range(
        request,
        now=now,
        home_zone=timezone.get_current_timezone_name(),
        choices=tuple(SPANS),
        default=DEFAULT_SPAN,
        longest=LONGEST_SPAN,
    )
    board = read_board([*listed.objectives, *([listed.apart] if listed.apart else [])], now=now)
    words = search_text(request)
    hidden = listed.apart if words or listed.page > 1 else None
    shown = [row for row in board.rows if row.objective != hidden]
    chosen = _chosen(board.rows, shown, chosen_id)
    query = f"?{request.GET.urlencode()}" if request.GET else ""
    shown_span = (
        span_of(span.name, as_of=board.as_of) if span.name else span_between(span.since, span.until, as_of=board.as_of)
    )
    with timezone.override(span.zone):
        detail = None if chosen is None else read_detail(chosen, shown_span, now=now)
    context: dict[str, Any] = {
        "board": board,
        "rows": [(row, place.url("objective", row.objective.pk) + query) for row in shown],
        "search": words,
        "listed": listed,
        "total": listed.found,
        "clear_url": place.url(),
        "detail": detail,
        "charts_until": shown_span.until if shown_span.cut else None,
        "range": span,
        "asked": [(key, request.GET[key]) for key in ("range", "from", "to", "zone") if request.GET.get(key)],
        "now": now,
        "manages": manages,
        "place": place,
        "tenant": place.tenant,
        "new_url": place.url("new"),
        "silence_url": place.url("silence-all"),
        "live_scope": "" if place.tenant is None else f"tenant:{place.tenant.slug}",
    }
    if detail is not None:
        context |= _detail_context(detail, place, span, manages=manages)
    return context


def listed_context(request: HttpRequest, listed: Listed, place: Place) -> dict[str, Any]:
    """Whose objectives the console lists."""

    def address(of: str) -> str:
        kept = request.GET.copy()
        for name in ("q", "of", "page"):
            kept.pop(name, None)
        if of:
            kept["of"] = of
        return place.url() + (f"?{kept.urlencode()}" if kept else "")

    tabs = [(_("The platform's"), address(""), not listed.of_tenants)]
    tabs.append((_("Tenants' own"), address(TENANTS), listed.of_tenants))
    return {
        "tabs": tabs if listed.some_of_tenants else [],
        "of": TENANTS if listed.of_tenants else "",
        "cut": listed.cut,
        "clear_url": address(TENANTS if listed.of_tenants else ""),
    }


def _chosen(rows: Sequence[Row], shown: Sequence[Row], chosen_id: UUID | None) -> Row | None:
    if chosen_id is None:
        return shown[0] if shown else None
    for row in rows:
        if row.objective.pk == chosen_id:
            return row
    raise Http404


def _detail_context(detail: Detail, place: Place, span: TimeRange, *, manages: bool) -> dict[str, Any]:
    pk = detail.objective.pk
    theirs = place.may_change(detail.objective, manages=manages)
    return {
        "chosen_id": pk,
        "may_change": theirs,
        "edit_url": place.url("edit", pk),
        "delete_url": place.url("delete", pk),
        "silence_one_url": place.url("silence", pk),
        "slow_url": _slow_requests(detail, place, span),
        "refused_url": _refused_requests(detail, place, span),
        "alerts": [
            AlertRow(
                alert,
                place.url("acknowledge", alert.pk) if theirs and alert.state == AlertState.FIRING.value else "",
            )
            for alert in detail.alerts
        ],
        "silences": [_silence_row(one, place, ends=theirs, now=detail.now) for one in detail.silences],
    }


def _silence_row(silence: Silence, place: Place, *, ends: bool, now: datetime) -> SilenceRow:
    portal = place.tenant is not None
    return SilenceRow(
        silence,
        place.url("unsilence", silence.pk) if ends else "",
        silenced_text(silence, portal=portal),
        silence.starts_at > now,
        "" if portal and silence.tenant_id is None else silence.reason,
    )


def _slow_requests(detail: Detail, place: Place, span: TimeRange) -> str:
    """The request log, with the requests that spent the budget in the span."""
    one = detail.objective
    told: dict[str, object] = {"version": one.version_id}
    if one.threshold_seconds is None:
        told["outcome"] = FAULT
    else:
        told[_LEAST[one.kind]] = f"{one.threshold_seconds * 1000:g}"
    return _requests("requests", detail, place, span, **told)


def _refused_requests(detail: Detail, place: Place, span: TimeRange) -> str:
    """Where those are counted that were refused before they were forwarded: they have no row in the log."""
    return _requests("request-refused", detail, place, span, **{"class": 5})


def _requests(name: str, detail: Detail, place: Place, span: TimeRange, **more: object) -> str:
    """A page of requests, of those that the objective counts in the span."""
    one, console = detail.objective, place.tenant is None
    address = Side(place.tenant).address(name)
    told = {
        "from": _local(detail.slow_since, span),
        "to": _local(detail.slow_until, span),
        "zone": span.zone.key,
        "model": one.model,
        "tenant": one.tenant.slug if console and one.tenant is not None else "",
        "tier": one.tier,
        **more,
    }
    return f"{address}?{urlencode({key: value for key, value in told.items() if value})}"


def _local(moment: datetime, span: TimeRange) -> str:
    """With its offset: an hour that comes twice, as clocks are put back, is two moments."""
    return moment.astimezone(span.zone).isoformat(timespec="minutes")


def releases() -> list[tuple[str, str]]:
    """What an objective can be narrowed to: the newest versions."""
    rows = ModelVersion.objects.select_related("model").order_by("-pk")[:MOST_RELEASES]
    return [(str(row.pk), f"{row.model.name} {row.name}") for row in rows]

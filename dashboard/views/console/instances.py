"""Console: the list of instances, and one instance with how it came to its state and the end of its log."""

from datetime import datetime
from typing import Final
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_safe

from dashboard import labels, selectors
from dashboard.access import console_page, signed_in
from dashboard.filters import search_text
from dashboard.frames import instance_rows
from dashboard.reads.instances import list_instances, read_choices, read_instance
from dashboard.refusals import said
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered, Words
from dashboard.views.console.instance_actions import possible
from gateway.reads.breakers import OpenBreakers, read_breakers
from gpupool.models import Instance, InstanceLog, InstanceState
from gpupool.selectors import engine_address, is_made_up
from gpupool.services.traces import ask_for_log
from tenants.actor import user_actor
from tenants.services import InvalidInput

TABLE: Final = Table(
    name="console-instances",
    sort="-created",
    columns=(
        Column(
            key="model",
            label=gettext_lazy("Model"),
            order="version__model__name",
            value=lambda row: row.version.model.name,
        ),
        Column(key="version", value=lambda row: row.version.name, hidden_label=gettext_lazy("Version")),
        Column(key="engine", value=lambda row: row.engine),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="reason", value=lambda row: row.reason),
        Column(key="node", label=gettext_lazy("Node"), order="node_name", value=lambda row: row.node_name),
        Column(key="endpoint", label=gettext_lazy("Endpoint"), value=engine_address),
        Column(
            key="running",
            label=pgettext_lazy("requests", "Running"),
            order="running",
            value=lambda row: row.running_now,
            numeric=True,
        ),
        Column(
            key="waiting",
            label=pgettext_lazy("requests", "Waiting"),
            order="waiting",
            value=lambda row: row.waiting_now,
            numeric=True,
        ),
        Column(
            key="since",
            label=gettext_lazy("In state for"),
            order="state_changed_at",
            value=lambda row: row.state_changed_at,
            numeric=True,
        ),
        Column(
            key="restarts",
            label=gettext_lazy("Restarts"),
            order="restarts",
            value=lambda row: row.restarts,
            numeric=True,
        ),
        Column(key="tenant", value=lambda row: row.tenant_id),
        Column(key="simulated", value=is_made_up),
        Column(key="created", order="pk", value=lambda row: row.created_at),
        Column(key="id", value=lambda row: row.pk),
    ),
)
SHOWN: Final = ("model", "state", "node", "endpoint", "running", "waiting", "since", "restarts")


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponseBase:
    counts = selectors.count_instances()
    choices = read_choices()
    states: list[tuple[str, Words]] = [("any", _("All, stopped ones too"))]
    states += [
        (value, f"{labels.word('instance', value)} ({counts[value]:,})")
        for value in labels.INSTANCE_STATES
        if counts[value] or value == request.GET.get("state")
    ]
    everything = _("All")
    facets = [
        Facet.read(request, "state", _("State"), states, all_label=_("All but stopped")),
        Facet.read(request, "engine", _("Engine"), [(name, name) for name in choices.engines], all_label=everything),
        Facet.read(request, "model", _("Model"), [(name, name) for name in choices.models], all_label=everything),
        Facet.read(request, "node", _("Node"), [(name, name) for name in choices.nodes], all_label=everything),
        Facet.read(
            request,
            "tenant",
            _("Tenant"),
            [("none", _("Bound to none")), *choices.tenants],
            all_label=everything,
        ),
        Facet.read(
            request,
            "simulated",
            _("Simulated"),
            [("no", _("Real ones")), ("yes", _("Simulated ones"))],
            all_label=everything,
        ),
    ]
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Model, engine, node or host"),
        facets=[facet for facet in facets if len(facet.options) > 1 or facet.chosen or facet.key == "state"],
    )
    rows = list_instances({facet.key: facet.chosen for facet in facets}, search=filtered.search)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    may_operate = signed_in(request).may_operate
    return render(
        request,
        "console/instances.html",
        {
            "page": page,
            "headings": [heading for heading in page.headings if heading.key in SHOWN],
            "rows": instance_rows(page.rows),
            "filtered": filtered,
            "may_operate": may_operate,
            **_head(timezone.now()),
        },
    )


@console_page
@require_safe
def page(request: HttpRequest, instance_id: UUID) -> HttpResponse:
    return render(request, "console/instance.html", _context(request, instance_id))


@console_page
@require_safe
def live(request: HttpRequest, instance_id: UUID) -> HttpResponse:
    """The parts of the page that change by themselves; its script puts them in place."""
    return render(request, "console/_instance_live.html", _context(request, instance_id))


@console_page
@require_safe
def log(request: HttpRequest, instance_id: UUID) -> HttpResponse:
    """The end of its log, asked for while the page shows it; a page of its own without scripts."""
    user = signed_in(request)
    found: InstanceLog | None = None
    refused = ""
    try:
        found = ask_for_log(instance_id, actor=user_actor(user.pk))
    except Instance.DoesNotExist as error:
        raise Http404 from error
    except InvalidInput as error:
        refused = said(error.message)
    part = "part" in request.GET
    context = {"log": found, "refused": refused, **({} if part else _context(request, instance_id))}
    return render(request, "console/_instance_log.html" if part else "console/instance_log.html", context)


def _context(request: HttpRequest, instance_id: UUID) -> dict[str, object]:
    try:
        found = read_instance(instance_id)
    except Instance.DoesNotExist as error:
        raise Http404 from error
    one = found.instance
    may_operate = signed_in(request).may_operate
    told = OpenBreakers() if one.state == InstanceState.STOPPED else read_breakers(one.pk)
    named = {breaker.process for breaker in told.left_alone}
    untold = told.untold if one.state == InstanceState.READY else []  # no other is sent requests
    now: datetime = timezone.now()
    return {
        "found": found,
        "instance": one,
        "verbs": possible(one) if may_operate else [],
        "may_operate": may_operate,
        "left_alone": [one for one in told.left_alone if not one.is_unasked(now)],
        "unasked": [one for one in told.left_alone if one.is_unasked(now)],
        "untold": [one for one in untold if one.process not in named],
        **_head(now),
    }


def _head(now: datetime) -> dict[str, object]:
    return {"now": now, "zone": str(timezone.get_current_timezone())}

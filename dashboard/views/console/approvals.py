"""Console: what tenants ask for, what it would mean for capacity, and the decision."""

from typing import Final
from uuid import UUID

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.console_forms import DecisionForm, amount_in_units
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text
from dashboard.reads.limits import with_use
from dashboard.refusals import add_refusal
from dashboard.sheets import posted
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gateway.services.capacity_impact import impact_of
from tenants.models import AccessRequest, RequestKind
from tenants.policies.requests import RequestState
from tenants.policies.roles import Action, Object
from tenants.services import Conflict, InvalidInput
from tenants.services.requests import decide_request, find_limit

TABLE: Final = Table(
    name="console-approvals",
    sort="-created",
    columns=(
        Column(key="tenant", label=gettext_lazy("Tenant"), order="tenant__slug", value=lambda row: row.tenant.slug),
        Column(key="what", label=gettext_lazy("Asks for"), value=lambda row: str(row.what)),
        Column(key="reason", label=gettext_lazy("Reason"), value=lambda row: row.reason),
        Column(key="until", label=gettext_lazy("Until"), value=lambda row: row.until),
        Column(key="created", label=gettext_lazy("Asked"), order="pk", value=lambda row: row.created_at),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="decided", label=pgettext_lazy("when", "Decided"), value=lambda row: row.decided_at),
    ),
)
_KINDS: Final = (("model", gettext_lazy("A model")), ("limit", gettext_lazy("A limit")))


@console_page
def page(request: HttpRequest) -> HttpResponse:
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Tenant or reason"),
        facets=[
            Facet.read(
                request,
                "state",
                _("State"),
                [("", _("All states")), *labels.REQUEST_STATES.items()],
                default=RequestState.OPEN.value,
            ),
            Facet.read(request, "kind", _("Kind"), _KINDS, all_label=_("All kinds")),
        ],
    )
    rows = _find(filtered)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    return render(
        request,
        "console/approvals.html",
        {
            "page": found,
            "rows": found.rows,
            "filtered": filtered,
            "only_open": filtered.facets[0].chosen == RequestState.OPEN.value and not filtered.search,
            "zone": str(timezone.get_current_timezone()),
        },
    )


def _find(filtered: Filtered) -> "QuerySet[AccessRequest]":
    rows = AccessRequest.objects.select_related("tenant", "requested_by", "decided_by")
    state, kind = (facet.chosen for facet in filtered.facets)
    rows = rows.filter(state=state) if state else rows
    rows = rows.filter(kind=kind) if kind else rows
    if filtered.search:
        text = filtered.search
        rows = rows.filter(
            Q(tenant__slug__icontains=text) | Q(tenant__name__icontains=text) | Q(reason__icontains=text)
        )
    return rows


@console_page
@require_http_methods(["GET", "POST"])
def one(request: HttpRequest, request_id: UUID) -> HttpResponse:
    """What is asked, what it would mean, and the buttons that decide."""
    asked = _find(Filtered(facets=(_ANY, _ANY))).filter(pk=request_id).first()
    if asked is None:
        raise Http404
    form = DecisionForm(posted(request))
    status = 200
    if request.method == "POST":
        actor = require(request, Action.CREATE, Object.DECISION)
        approved, status = request.POST.get("decision") == "approve", 422
        if form.is_valid():
            metric = asked.what.get("metric", "")
            amount = amount_in_units(form, "amount", metric) if approved and asked.kind == RequestKind.LIMIT else None
            if not form.errors:
                try:
                    decide_request(
                        asked.pk,
                        approved=approved,
                        answer=form.cleaned_data["answer"],
                        amount=amount,
                        actor=actor,
                    )
                except (InvalidInput, Conflict) as error:
                    add_refusal(form, error)
                else:
                    said = _("Approved: it is granted from now on.") if approved else _("Declined.")
                    messages.success(request, said)
                    return redirect("console-approval", asked.pk)
    now = timezone.now()
    limit = find_limit(asked.tenant_id, asked.what) if asked.kind == RequestKind.LIMIT else None
    is_open = asked.state == RequestState.OPEN.value
    return render(
        request,
        "console/approval.html",
        {
            "asked": asked,
            "form": form,
            "now": now,
            "zone": str(timezone.get_current_timezone()),
            "is_open": is_open,
            "use": with_use([limit], now=now)[0] if limit is not None else None,
            "impacts": impact_of(asked, now=now) if is_open else [],
            "may_decide": is_open and allowed(request, Action.CREATE, Object.DECISION),
            "own": asked.requested_by_id == signed_in(request).pk,
        },
        status=status,
    )


_ANY: Final = Facet(key="", label="", options=())

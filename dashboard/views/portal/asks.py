"""Portal: asking the platform for a model or for more than a limit allows; what became of it; taking it back."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import PortalAccess, portal_page
from dashboard.filters import search_text
from dashboard.portal_forms import ModelAskForm, MoreForm
from dashboard.reads.portal_limits import LimitNow, read_limits
from dashboard.refusals import add_refusal, said
from dashboard.sheets import leave, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.actor import user_actor
from tenants.models import AccessRequest, ApiKey
from tenants.policies.roles import Action, Object
from tenants.reads.notices import get_request, list_requests
from tenants.services import Conflict, InvalidInput
from tenants.services.requests import request_limit, request_model, withdraw_request

TABLE: Final = Table(
    name="requests-for-more",
    sort="-asked",
    columns=(
        Column(
            key="what",
            label=gettext_lazy("Asked for"),
            value=lambda row: row.what.get("model") or row.what.get("metric"),
        ),
        Column(key="amount", value=lambda row: row.what.get("amount")),
        Column(key="reason", label=gettext_lazy("Why"), value=lambda row: row.reason),
        Column(key="asked", label=gettext_lazy("When"), order="pk", value=lambda row: row.created_at),
        Column(key="by", value=lambda row: str(row.requested_by or "")),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="answer", label=gettext_lazy("Answer"), value=lambda row: row.answer),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)


def _frame(access: PortalAccess, back: str, title: str) -> dict[str, object]:
    """What a dialog's page needs around it."""
    return {"access": access, "title": title, "back": reverse(back, args=[access.tenant.slug])}


@portal_page
def index(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """All that the tenant asked for, whatever became of it."""
    facet = Facet.read(request, "state", _("State"), list(labels.REQUEST_STATES.items()), all_label=_("All"))
    filtered = Filtered(search=search_text(request), placeholder=_("Reason"), facets=[facet])
    rows: QuerySet[Any] = list_requests(access.tenant, state=facet.chosen or None).select_related("requested_by")
    if filtered.search:
        rows = rows.filter(reason__icontains=filtered.search)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    return render(
        request,
        "portal/asks.html",
        {
            "access": access,
            "page": page,
            "headings": [heading for heading in page.headings if heading.label or heading.hidden_label],
            "filtered": filtered,
            "rows": [(row, row.state == "open" and access.may_withdraw(row.requested_by_id)) for row in page.rows],
        },
    )


@portal_page
@require_http_methods(["GET", "POST"])
def more(request: HttpRequest, access: PortalAccess, limit_id: UUID) -> HttpResponse:
    """Ask for more than one limit allows, for good or until a day."""
    access.require(Action.CREATE, Object.REQUEST)
    limit = _limit(access, limit_id)
    form = MoreForm(request.POST or None, limit=limit, zone=access.tenant.time_zone)
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                request_limit(
                    access.tenant,
                    metric=limit.metric,
                    window=limit.window,
                    amount=form.cleaned_data["amount"],
                    reason=form.cleaned_data["reason"],
                    model=limit.model,
                    key=ApiKey.objects.get(pk=limit.key_id, tenant=access.tenant) if limit.key_id else None,
                    subtree=limit.scope == "departments",
                    until=form.cleaned_data["until"],
                    actor=user_actor(access.user.pk),
                )
            except (InvalidInput, Conflict) as error:
                add_refusal(form, error)
            else:
                messages.success(request, _("Asked. Whoever runs the platform decides; you are told what they say."))
                return leave(request, "portal-limits", access.tenant.slug)
        status = 422
    context = {**_frame(access, "portal-limits", _("Limits")), "form": form, "one": limit}
    return sheet(request, "portal/_more_form.html", context, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def model(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """Ask for a model; `?model=` names it."""
    access.require(Action.CREATE, Object.REQUEST)
    named = request.GET.get("model", "").replace("\x00", "")[:200]
    form = ModelAskForm(request.POST or None, initial={"model": named}, zone=access.tenant.time_zone)
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                request_model(
                    access.tenant,
                    model=form.cleaned_data["model"],
                    reason=form.cleaned_data["reason"],
                    until=form.cleaned_data["until"],
                    actor=user_actor(access.user.pk),
                )
            except (InvalidInput, Conflict) as error:
                add_refusal(form, error)
            else:
                messages.success(request, _("Asked. Whoever runs the platform decides; you are told what they say."))
                return leave(request, "portal-models", access.tenant.slug)
        status = 422
    context = {**_frame(access, "portal-models", _("Models")), "form": form}
    return sheet(request, "portal/_model_ask_form.html", context, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def withdraw(request: HttpRequest, access: PortalAccess, request_id: UUID) -> HttpResponse:
    """Asks first; then nobody decides about it any more."""
    access.require(Action.DELETE, Object.REQUEST)
    try:
        asked = get_request(request_id, tenant=access.tenant)
    except AccessRequest.DoesNotExist as error:
        raise Http404 from error
    if not access.may_withdraw(asked.requested_by_id):
        raise PermissionDenied
    if request.method == "POST":
        try:
            withdraw_request(asked.pk, actor=user_actor(access.user.pk))
            messages.success(request, _("The request is withdrawn."))
        except Conflict as error:
            messages.error(request, said(error.message))
        return redirect("portal-limit-asks", access.tenant.slug)
    context = {**_frame(access, "portal-limit-asks", _("Requests for more")), "asked": asked}
    return sheet(request, "portal/_ask_withdraw.html", context)


def _limit(access: PortalAccess, limit_id: UUID) -> LimitNow:
    """One of those that more can be asked of."""
    for one in read_limits(access.tenant, timezone.now(), rates=0):
        if one.id == limit_id and one.may_ask:
            return one
    raise Http404

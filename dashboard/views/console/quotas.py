"""Console: limits of the platform and of all tenants, with what is used of them; made, changed, raised, taken away."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import console_page
from dashboard.console_forms import (
    BoostForm,
    LimitChangeForm,
    LimitForm,
    amount_as_said,
    amount_in_units,
)
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text, tenant_slug
from dashboard.reads.limits import with_use
from dashboard.refusals import tried
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.models import Limit, Tenant
from tenants.policies.roles import Action, Object
from tenants.services.limits import boost_limit, change_limit, create_limit, delete_limit

TABLE: Final = Table(
    name="console-quotas",
    sort="-created",
    columns=(
        Column(key="owner", label=gettext_lazy("Whose"), order="owner", value=lambda row: row.owner),
        Column(key="metric", label=gettext_lazy("Limit"), order="metric", value=lambda row: row.metric),
        Column(key="window", value=lambda row: row.window, label=gettext_lazy("Window"), order="window"),
        Column(key="amount", label=gettext_lazy("At most"), order="amount", value=lambda row: row.amount, numeric=True),
        Column(key="used", label=gettext_lazy("Used now")),
        Column(key="created", label=pgettext_lazy("when", "Made"), order="pk", value=lambda row: row.created_at),
        Column(key="note", label=gettext_lazy("Note"), value=lambda row: row.note),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)
CSV_TABLE: Final = Table(
    name=TABLE.name,
    sort=TABLE.sort,
    columns=(
        *TABLE.columns,
        Column(key="id", value=lambda row: row.pk),
        Column(key="subtree", value=lambda row: row.subtree),
        Column(key="key", value=lambda row: row.key.name if row.key else ""),
        Column(key="model", value=lambda row: row.model),
        Column(key="refill_per_second", value=lambda row: row.refill_per_second),
        Column(key="boost_amount", value=lambda row: row.boost_amount),
        Column(key="boost_until", value=lambda row: row.boost_until),
    ),
)
"""The page tells these in one column with the metric; without them rows of a file would not be told apart."""

_SCOPES: Final = (
    ("platform", gettext_lazy("All tenants together")),
    ("tenant", gettext_lazy("A tenant")),
    ("key", gettext_lazy("A key")),
    ("raised", gettext_lazy("Raised for a while")),
)


@console_page
def page(request: HttpRequest) -> HttpResponse:
    slug = tenant_slug(request)
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Tenant, key, model or note"),
        facets=[
            Facet.read(request, "scope", _("Of"), _SCOPES, all_label=_("All scopes")),
            Facet.read(request, "metric", _("What"), list(labels.METRICS.items()), all_label=_("Everything")),
            Facet.read(request, "window", _("Window"), list(labels.WINDOWS.items()), all_label=_("All windows")),
        ],
    )
    rows = _find(slug, filtered)
    if is_csv(request):
        return csv_response(CSV_TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    now = timezone.now()
    return render(
        request,
        "console/quotas.html",
        {
            "page": found,
            "rows": with_use(found.rows, now=now),
            "now": now,
            "filtered": filtered,
            "kept": [("tenant", slug)] if slug else [],
            "tenant": Tenant.objects.filter(slug=slug).first() if slug else None,
            "may_change": allowed(request, Action.CHANGE, Object.LIMIT),
        },
    )


def _find(slug: str, filtered: Filtered) -> "QuerySet[Limit]":
    scope, metric, window = (facet.chosen for facet in filtered.facets)
    rows = Limit.objects.select_related("tenant", "key").annotate(owner=Coalesce("tenant__slug", Value("")))
    if slug:
        rows = rows.filter(tenant__slug=slug)
    exact = {name: value for name, value in (("metric", metric), ("window", window)) if value}
    rows = rows.filter(**exact)
    match scope:
        case "platform":
            rows = rows.filter(tenant__isnull=True)
        case "tenant":
            rows = rows.filter(tenant__isnull=False, key__isnull=True)
        case "key":
            rows = rows.filter(key__isnull=False)
        case "raised":
            rows = rows.filter(boost_until__gt=timezone.now())
    if filtered.search:
        text = filtered.search
        rows = rows.filter(
            Q(tenant__slug__icontains=text)
            | Q(tenant__name__icontains=text)
            | Q(key__name__icontains=text)
            | Q(model__icontains=text)
            | Q(note__icontains=text)
        )
    return rows


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """The form; in force within a second once it is sent."""
    actor = require(request, Action.CREATE, Object.PLATFORM_LIMIT)
    form = LimitForm(posted(request), initial={"tenant": tenant_slug(request)})
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            values = dict(form.cleaned_data)
            amount = amount_in_units(form, "amount", values["metric"])
            if (
                amount is not None
                and tried(form, lambda: create_limit(actor=actor, **{**values, "amount": amount})) is not None
            ):
                messages.success(request, _("The limit is made. It is in force within a second."))
                return leave(request, _list(values["tenant"]))
    return sheet(request, "console/_quota_new.html", {**_frame(), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, limit_id: UUID) -> HttpResponse:
    """More or less, from now on; what was used still counts."""
    actor = require(request, Action.CHANGE, Object.LIMIT)
    limit = _limit(limit_id)
    form = LimitChangeForm(
        posted(request),
        initial={
            "amount": amount_as_said(limit.amount, limit.metric),
            "refill_per_second": limit.refill_per_second,
            "alert_shares": ", ".join(map(str, limit.alert_shares)),
            "note": limit.note,
        },
    )
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            values = dict(form.cleaned_data)
            amount = amount_in_units(form, "amount", limit.metric)
            if request.POST["amount"].strip() == amount_as_said(limit.amount, limit.metric):
                amount = limit.amount  # left as it was: what is shown of bytes may be rounded
            if (
                amount is not None
                and tried(form, lambda: change_limit(limit_id, actor=actor, **{**values, "amount": amount})) is not None
            ):
                messages.success(request, _("The limit is changed. It is in force within a second."))
                return leave(request, _list(limit.tenant))
    return sheet(request, "console/_quota_change.html", {**_of(limit), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def boost(request: HttpRequest, limit_id: UUID) -> HttpResponse:
    """More for a while; or, where it is raised, the end of that."""
    actor = require(request, Action.CHANGE, Object.LIMIT)
    limit = _limit(limit_id)
    form = BoostForm(posted(request))
    status = 200
    if request.method == "POST" and "end" in request.POST:
        boost_limit(limit_id, amount=None, until=None, actor=actor)
        messages.success(request, _("The limit is what it was again."))
        return leave(request, _list(limit.tenant))
    if request.method == "POST":
        status = 422
        if form.is_valid():
            amount = amount_in_units(form, "amount", limit.metric)
            if (
                amount is not None
                and tried(form, lambda: boost_limit(limit_id, amount=amount, until=form.until(), actor=actor))
                is not None
            ):
                messages.success(request, _("The limit is raised for a while. By itself it is what it was then."))
                return leave(request, _list(limit.tenant))
    return sheet(request, "console/_quota_boost.html", {**_of(limit), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, limit_id: UUID) -> HttpResponse:
    """Asks first; then what it held back passes."""
    actor = require(request, Action.DELETE, Object.LIMIT)
    limit = _limit(limit_id)
    if request.method == "POST":
        delete_limit(limit_id, actor=actor)
        messages.success(request, _("The limit is gone."))
        return leave(request, _list(limit.tenant))
    (use,) = with_use([limit], now=timezone.now())
    return sheet(request, "console/_quota_delete.html", {**_of(limit), "row": use})


def _list(tenant: Tenant | None) -> str:
    address = reverse("console-quotas")
    return f"{address}?tenant={tenant.slug}" if tenant else address


def _frame() -> dict[str, Any]:
    return {"title": _("Quotas"), "back": reverse("console-quotas")}


def _of(limit: Limit) -> dict[str, Any]:
    return {**_frame(), "back": _list(limit.tenant), "limit": limit, "now": timezone.now()}


def _limit(limit_id: UUID) -> Limit:
    try:
        return Limit.objects.select_related("tenant", "key").get(pk=limit_id)
    except Limit.DoesNotExist as error:
        raise Http404 from error

"""Console: the price book, which is only added to."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page
from dashboard.console_forms import PriceForm
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text
from dashboard.refusals import add_refusal, said
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool.models import ModelVersion
from tenants.models import Price
from tenants.policies.pricing import PriceTag
from tenants.policies.roles import Action, Object
from tenants.services import Conflict, InvalidInput
from tenants.services.prices import NOTICE, set_price, withdraw_price

TABLE: Final = Table(
    name="console-prices",
    sort="-from",
    columns=(
        Column(key="model", label=gettext_lazy("Model"), order="model", value=lambda row: row.model),
        Column(key="from", label=gettext_lazy("From"), order="effective_from", value=lambda row: row.effective_from),
        Column(
            key="input_micros",
            label=gettext_lazy("Input, a million"),
            order="input_micros",
            value=lambda row: row.input_micros,
            numeric=True,
        ),
        Column(
            key="cached_input_micros",
            label=gettext_lazy("Cached input, a million"),
            order="cached_input_micros",
            value=lambda row: row.cached_input_micros,
            numeric=True,
        ),
        Column(
            key="output_micros",
            label=gettext_lazy("Output, a million"),
            order="output_micros",
            value=lambda row: row.output_micros,
            numeric=True,
        ),
        Column(
            key="request_micros",
            label=gettext_lazy("A request"),
            order="request_micros",
            value=lambda row: row.request_micros,
            numeric=True,
        ),
        Column(
            key="gpu_second_micros",
            label=gettext_lazy("GPU second"),
            order="gpu_second_micros",
            value=lambda row: row.gpu_second_micros,
            numeric=True,
        ),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)
CSV_TABLE: Final = Table(
    name=TABLE.name,
    sort=TABLE.sort,
    columns=(
        *TABLE.columns,
        Column(key="id", value=lambda row: row.pk),
        Column(key="version_id", value=lambda row: row.version_id),
    ),
)
_WHEN: Final = (
    ("current", gettext_lazy("In effect")),
    ("ahead", gettext_lazy("To come")),
    ("past", gettext_lazy("Replaced")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """`standing`: current, ahead or past. `version` is its name, "" for all of the model's."""

    price: Price
    standing: str
    version: str
    may_withdraw: bool


@console_page
def page(request: HttpRequest) -> HttpResponse:
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Model"),
        facets=[Facet.read(request, "when", _("Which"), _WHEN, all_label=_("All prices"))],
    )
    now = timezone.now()
    rows = _find(filtered, now)
    if is_csv(request):
        return csv_response(CSV_TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    return render(
        request,
        "console/prices.html",
        {
            "page": found,
            "rows": _rows(found.rows, now, may_withdraw=allowed(request, Action.DELETE, Object.PRICE)),
            "filtered": filtered,
            "zone": str(timezone.get_current_timezone()),
            "may_set": allowed(request, Action.CREATE, Object.PRICE),
        },
    )


def _current(now: datetime) -> "QuerySet[Price]":
    """Of each model and version the newest that is in effect."""
    in_effect = Price.objects.filter(effective_from__lte=now).order_by("model", "version_id", "-effective_from", "-pk")
    return in_effect.distinct("model", "version_id")


def _find(filtered: Filtered, now: datetime) -> "QuerySet[Price]":
    rows = Price.objects.all()
    if filtered.search:
        rows = rows.filter(model__icontains=filtered.search)
    match filtered.facets[0].chosen:
        case "current":
            return rows.filter(pk__in=_current(now).values("pk"))
        case "ahead":
            return rows.filter(effective_from__gt=now)
        case "past":
            return rows.filter(effective_from__lte=now).exclude(pk__in=_current(now).values("pk"))
    return rows


def _rows(prices: Any, now: datetime, *, may_withdraw: bool) -> list[Row]:
    current = set(_current(now).filter(model__in={price.model for price in prices}).values_list("pk", flat=True))
    ids = {price.version_id for price in prices if price.version_id}
    versions = dict(ModelVersion.objects.filter(pk__in=ids).values_list("pk", "name"))
    rows = []
    for price in prices:
        ahead = price.effective_from > now
        standing = "ahead" if ahead else "current" if price.pk in current else "past"
        version = versions.get(price.version_id) or (str(price.version_id)[:8] if price.version_id else "")
        rows.append(Row(price, standing, version, may_withdraw and price.effective_from > now + NOTICE))
    return rows


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """The form; requests that begin from then on cost that."""
    actor = require(request, Action.CREATE, Object.PRICE)
    form = PriceForm(posted(request))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                set_price(
                    form.cleaned_data["model"],
                    PriceTag(**form.micros()),
                    effective_from=form.cleaned_data["effective_from"],
                    actor=actor,
                )
            except InvalidInput as error:
                add_refusal(form, error)
            except Conflict as error:
                form.add_error("effective_from", said(str(error)))
            else:
                messages.success(request, _("The price is in the book."))
                return leave(request, "console-prices")
    return sheet(request, "console/_price_new.html", {**_frame(), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def withdraw(request: HttpRequest, price_id: UUID) -> HttpResponse:
    """Takes back one that is not in effect yet."""
    actor = require(request, Action.DELETE, Object.PRICE)
    price = Price.objects.filter(pk=price_id).first()
    if price is None:
        raise Http404
    if request.method == "POST":
        try:
            withdraw_price(price_id, actor=actor)
        except Conflict:
            messages.error(request, _("The price is or was in effect, and bills name it: set another one instead."))
        else:
            messages.success(request, _("The price is taken back."))
        return leave(request, "console-prices")
    return sheet(request, "console/_price_withdraw.html", {**_frame(), "price": price})


def _frame() -> dict[str, object]:
    return {"title": _("Prices"), "back": reverse("console-prices")}

"""Portal: models that the tenant may call, those that it may ask for, and nothing of what is others' own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.access import PortalAccess, portal_page
from dashboard.filters import search_text
from dashboard.reads.portal_models import Access, asked_for, contexts_of, list_models, state_of
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.policies.money import amount_of
from tenants.policies.roles import Action, Object


def _price(micros: int | None) -> str:
    return "" if micros is None else amount_of(micros)


TABLE: Final = Table(
    name="models",
    sort="name",
    columns=(
        Column(key="name", label=gettext_lazy("Model"), order="name", value=lambda row: row.name),
        Column(key="state", label=gettext_lazy("Now"), order="ready", value=state_of),
        Column(key="context", label=gettext_lazy("Context"), numeric=True),
        Column(
            key="input_price",
            label=gettext_lazy("Input, a million"),
            numeric=True,
            value=lambda row: _price(row.input_micros),
        ),
        Column(
            key="output_price",
            label=gettext_lazy("Output, a million"),
            numeric=True,
            value=lambda row: _price(row.output_micros),
        ),
        Column(key="access", label=gettext_lazy("Yours")),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row as the page shows it."""

    model: Any
    state: str
    access: Access
    context: int | None
    asked: bool


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """The granted first where nothing else is asked."""
    now = timezone.now()
    facet = Facet.read(
        request,
        "access",
        _("Yours"),
        [("granted", _("Granted")), ("askable", _("Can be asked for"))],
        all_label=_("All"),
    )
    filtered = Filtered(search=search_text(request), placeholder=_("Name or description"), facets=[facet])
    rows, told = list_models(access.tenant, now)
    if facet.chosen:
        wanted = [pk for pk, one in told.items() if one.granted is (facet.chosen == "granted")]
        rows = rows.filter(pk__in=wanted)
    if filtered.search:
        named = rows.filter(name__icontains=filtered.search) | rows.filter(description__icontains=filtered.search)
        rows = (named | rows.filter(aliases__name__icontains=filtered.search)).distinct()
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    asked = asked_for(access.tenant)
    contexts = contexts_of(page.rows, access.tenant)
    return render(
        request,
        "portal/models.html",
        {
            "access": access,
            "page": page,
            "rows": [_line(row, told, contexts, asked) for row in page.rows],
            "filtered": filtered,
            "granted": sum(one.granted for one in told.values()),
            "may_ask": access.may(Action.CREATE, Object.REQUEST),
            "may_play": access.may_create_keys,
        },
    )


def _line(row: Any, told: Mapping[UUID, Access], contexts: Mapping[UUID, int | None], asked: set[str]) -> Line:
    return Line(row, state_of(row), told[row.pk], contexts.get(row.pk), row.name in asked)

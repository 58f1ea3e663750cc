"""Console: where a request for each model can go now, and why not elsewhere."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard.access import console_page
from dashboard.filters import search_text
from dashboard.reads.models import list_models, read_routes
from dashboard.tables import Column, Facet, Table, read_page
from dashboard.tables.table import Filtered

TABLE: Final = Table(
    name="console-routing",
    sort="model",
    page_size=10,
    columns=(Column(key="model", label=gettext_lazy("Model"), order="name", value=lambda row: row.name),),
)


@console_page
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    facet = Facet.read(
        request,
        "serves",
        _("Serves"),
        [("yes", _("A version serves")), ("no", _("None serves"))],
        default="yes",
        all_label="",
    )
    filtered = Filtered(search=search_text(request), placeholder=_("Name or other name"), facets=[facet])
    found = read_page(TABLE, request, list_models({"serves": facet.chosen}, search=filtered.search))
    return render(
        request,
        "console/routing.html",
        {
            "page": found,
            "routes": read_routes(list(found.rows)),
            "filtered": filtered,
            "searched": bool(filtered.search) or facet.chosen != "yes",
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
        },
    )

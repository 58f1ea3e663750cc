"""Portal: what the tenant may have of the GPUs, what it holds, and what of that is in use: three numbers."""

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.access import PortalAccess, portal_page
from dashboard.filters import search_text
from dashboard.reads.capacity import list_own_instances, read_capacity
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered

TABLE = Table(
    name="instances",
    sort="-started",
    columns=(
        Column(
            key="model",
            label=gettext_lazy("Model"),
            order="version__model__name",
            value=lambda row: row.version.model.name,
        ),
        Column(key="version", value=lambda row: row.version.name),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="gpus", label=gettext_lazy("GPUs"), order="gpus", numeric=True, value=lambda row: row.gpus),
        Column(
            key="claimed", label=gettext_lazy("Claimed"), order="claimed", numeric=True, value=lambda row: row.claimed
        ),
        Column(key="in_use", label=gettext_lazy("In use"), numeric=True, value=lambda row: row.device_bytes_now),
        Column(key="requests", label=gettext_lazy("Requests now"), numeric=True, value=lambda row: row.running_now),
        Column(key="kv", label=gettext_lazy("KV cache"), numeric=True, value=lambda row: row.kv_now),
        Column(key="simulated", value=lambda row: bool(row.made_up)),
        Column(key="started", label=gettext_lazy("Since"), order="pk", value=lambda row: row.created_at),
    ),
)


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    now = timezone.now()
    facet = Facet.read(
        request, "state", _("State"), [("all", _("All, stopped ones too"))], all_label=_("All but stopped")
    )
    filtered = Filtered(search=search_text(request), placeholder=_("Model"), facets=[facet])
    rows = list_own_instances(access.tenant, stopped=facet.chosen == "all", search=filtered.search)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    return render(
        request,
        "portal/capacity.html",
        {
            "access": access,
            "now": now,
            "page": page,
            "headings": [heading for heading in page.headings if heading.label],
            "filtered": filtered,
            "capacity": read_capacity(access.tenant, now),
        },
    )

"""Console: fine-tuning jobs of all tenants, and what came of them."""

from typing import Final

from django.db.models import F, TextField, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard import labels
from dashboard.access import console_page
from dashboard.filters import search_text
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool.models import FineTuningJob

TABLE: Final = Table(
    name="console-training",
    sort="-created",
    columns=(
        Column(key="model", label=gettext_lazy("Model"), order="model", value=lambda row: row.model),
        Column(key="tenant", label=gettext_lazy("Tenant"), order="tenant_slug", value=lambda row: row.tenant_slug),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="adapter", label=gettext_lazy("Adapter"), order="adapter_name", value=lambda row: row.adapter_name),
        Column(
            key="tokens",
            label=gettext_lazy("Trained tokens"),
            order="tokens",
            value=lambda row: row.trained_tokens,
            numeric=True,
        ),
        Column(key="steps", label=gettext_lazy("Steps"), value=lambda row: row.steps, numeric=True),
        Column(key="created", label=gettext_lazy("Created"), order="pk", value=lambda row: row.created_at),
        Column(key="finished", label=gettext_lazy("Finished"), value=lambda row: row.finished_at),
    ),
)
_STATES: Final = ("queued", "running", "succeeded", "failed", "cancelled")


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponseBase:
    states = [(state, labels.word("job", state)) for state in _STATES]
    facets = [Facet.read(request, "state", _("State"), states, all_label=_("All"))]
    filtered = Filtered(search=search_text(request), placeholder=_("Model, tenant or adapter"), facets=facets)
    rows = FineTuningJob.objects.select_related("adapter").annotate(
        adapter_name=Coalesce(F("adapter__name"), Value(""), output_field=TextField()),
        tokens=Coalesce(F("trained_tokens"), Value(-1)),
    )
    if facets[0].chosen:
        rows = rows.filter(state=facets[0].chosen)
    if filtered.search:
        word = filtered.search
        rows = (
            rows.filter(model__icontains=word)
            | rows.filter(tenant_slug__icontains=word)
            | rows.filter(adapter_name__icontains=word)
        )
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    return render(
        request,
        "console/training.html",
        {
            "page": read_page(TABLE, request, rows),
            "filtered": filtered,
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
        },
    )

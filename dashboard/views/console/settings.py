"""Console: what this installation is set to, from where each value comes, and where its notices are posted."""

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.access import console_page
from dashboard.filters import search_text
from dashboard.reads.process_settings import read_settings
from dashboard.tables import Facet
from dashboard.tables.table import Filtered
from dashboard.views.console.webhooks import keeper_of
from dashboard.webhook_pages import card_context
from tenants.models import Installation

_SOURCES: Final = (
    ("environment", gettext_lazy("Environment")),
    ("file", gettext_lazy("Chosen at the start")),
    ("default", gettext_lazy("Default")),
)


@console_page
def page(request: HttpRequest) -> HttpResponse:
    """A few hundred rows, all of them on one page."""
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Name or meaning"),
        facets=[Facet.read(request, "source", _("Source"), _SOURCES, all_label=_("All sources"))],
    )
    words, source = filtered.search.lower(), filtered.facets[0].chosen
    rows = [
        row
        for row in read_settings()
        if source in ("", row.source) and (words in row.variable.lower() or words in row.help.lower())
    ]
    return render(
        request,
        "console/settings.html",
        {
            "rows": rows,
            "filtered": filtered,
            "installation": Installation.objects.first(),
            "web_url": settings.GATEHOUSE.public_web_url,
            "relay_url": settings.GATEHOUSE.public_relay_url,
            "zone": str(timezone.get_current_timezone()),
            **card_context(keeper_of(request)),
        },
    )

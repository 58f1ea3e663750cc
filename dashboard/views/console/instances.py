"""Console: all instances, filtered by the address."""

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard import labels, selectors
from dashboard.access import console_page
from dashboard.frames import instance_row

PAGE_SIZE = 100


@console_page
def page(request: HttpRequest) -> HttpResponse:
    state = request.GET.get("state", "")
    search = request.GET.get("q", "").strip()
    if state not in labels.INSTANCE_STATES:
        state = ""
    instances = selectors.list_instances(state=state, search=search, include_stopped=bool(state or search))
    found = Paginator(instances, PAGE_SIZE).get_page(request.GET.get("page"))
    counts = selectors.count_instances()
    return render(
        request,
        "console/instances.html",
        {
            "rows": [instance_row(instance) for instance in found],
            "found": found,
            "now": timezone.now(),
            "state": state,
            "search": search,
            "states": [(value, labels.word("instance", value), counts[value]) for value in labels.INSTANCE_STATES],
            "filtered": bool(state or search),
        },
    )

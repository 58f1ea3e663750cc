"""Console overview: what to look at first; then what is ready, what is busy, what each device has left."""

from django.db import ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard.access import console_page
from dashboard.attention import Item, items_of
from dashboard.frames import BLANK_DEVICE, BLANK_INSTANCE, DEVICE_LIMIT, INSTANCE_LIMIT, build_console_frame
from dashboard.policies.attention import Kind, rank
from dashboard.reads.attention import find_all


@console_page
def page(request: HttpRequest) -> HttpResponse:
    """The first frame comes with the page; the live channel `fleet` brings the next ones."""
    now = timezone.now()
    found = _attention()
    try:
        frame = build_console_frame(now=now)
    except ProgrammingError:
        if not any(item.kind == Kind.SCHEMA_BEHIND for item in found):
            raise
        return render(request, "console/overview_base.html", {"attention": found, "now": now})
    return render(
        request,
        "console/overview.html",
        {
            "frame": frame,
            "attention": found,
            "now": now,
            "device_limit": DEVICE_LIMIT,
            "instance_limit": INSTANCE_LIMIT,
            "blank_device": BLANK_DEVICE,
            "blank_instance": BLANK_INSTANCE,
        },
    )


@console_page
def attention(request: HttpRequest) -> HttpResponse:
    """The list alone: the page asks for it anew from time to time."""
    return render(request, "console/_attention.html", {"attention": _attention(), "now": timezone.now()})


def _attention() -> list[Item]:
    return items_of(rank(find_all(timezone.now())))

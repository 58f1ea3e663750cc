"""Console overview: what is ready, what is busy, what each device has left."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard.access import console_page
from dashboard.frames import BLANK_DEVICE, BLANK_INSTANCE, DEVICE_LIMIT, INSTANCE_LIMIT, build_console_frame


@console_page
def page(request: HttpRequest) -> HttpResponse:
    """The first frame comes with the page; the live channel `fleet` brings the next ones."""
    frame = build_console_frame(now=timezone.now())
    return render(
        request,
        "console/overview.html",
        {
            "frame": frame,
            "device_limit": DEVICE_LIMIT,
            "instance_limit": INSTANCE_LIMIT,
            "blank_device": BLANK_DEVICE,
            "blank_instance": BLANK_INSTANCE,
        },
    )

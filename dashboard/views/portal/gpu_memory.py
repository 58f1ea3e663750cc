"""Portal: a tenant's own memory on GPUs; what others claim is one block without names."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from dashboard.access import PortalAccess, portal_page
from dashboard.charts.flame import WallPage


@portal_page
def page(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """The wall itself comes over the live channel, filtered by the server."""
    slug = access.tenant.slug
    here = reverse("portal-gpu-memory", args=[slug])
    wall = WallPage(scope=f"tenant:{slug}", frame_url=f"{here}frame/", history_url=f"{here}history/")
    return render(request, "portal/gpu_memory.html", {"access": access, "wall": wall})

"""Console: looking at a tenant's portal as one of its members sees it."""

from contextlib import suppress
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import viewing
from dashboard.access import console_page, people_page, signed_in
from dashboard.sheets import leave, sheet
from tenants.models import Membership, Tenant
from tenants.reads.people import list_members
from tenants.services import Conflict

_MOST_MEMBERS = 200
"""In the list to choose from, the newest; of a larger tenant each person's page leads to them alone."""


@console_page
@require_http_methods(["GET", "POST"])
def begin(request: HttpRequest, slug: str) -> HttpResponse:
    """Asks as whom; then leads to the portal, which from then on is what that member sees."""
    user = signed_in(request)
    if not viewing.may_view_as(user):
        raise PermissionDenied
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise Http404
    listed = list_members(tenant).filter(user__is_active=True)
    with suppress(KeyError, ValueError):
        listed = listed.filter(user_id=UUID(request.GET["member"]))
    members = list(listed[:_MOST_MEMBERS])
    back = reverse("console-tenant", args=[slug])
    frame = {"title": _("Tenants"), "back": back, "tenant": tenant, "members": members}
    if request.method != "POST":
        return sheet(request, "console/_view_as.html", frame)
    try:
        viewing.begin(request, tenant, UUID(request.POST.get("member", "")), operator=user)
    except (ValueError, Membership.DoesNotExist):
        return sheet(request, "console/_view_as.html", {**frame, "error": _("Choose a member.")}, status=422)
    except Conflict:
        told = _("This person is deactivated and sees nothing.")
        return sheet(request, "console/_view_as.html", {**frame, "error": told}, status=422)
    return leave(request, "portal-home", slug)


@people_page
@require_POST
def end(request: HttpRequest) -> HttpResponseBase:
    """Back to the console, to the tenant that was looked at."""
    tenant = viewing.end(request, why="ended")
    if tenant is None:
        return redirect("home")
    messages.success(request, _("You look with your own eyes again."))
    return redirect("console-tenant", tenant.slug)

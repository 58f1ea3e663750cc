"""Where people land after logging in."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from dashboard.access import signed_in
from tenants.selectors import list_tenants_for


@login_required
def start(request: HttpRequest) -> HttpResponse:
    """The console for platform roles, else the first tenant's portal, else a page that says whom to ask."""
    user = signed_in(request)
    if user.may_read_platform:
        return redirect("console-overview")
    tenant = list_tenants_for(user).first()
    if tenant is not None:
        return redirect("portal-home", tenant.slug)
    return render(request, "no_tenant.html")

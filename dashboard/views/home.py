"""Where people land after logging in."""

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render

from dashboard.access import people_page, signed_in
from dashboard.viewing import viewing_in
from tenants.selectors import list_tenants_for


@people_page
def start(request: HttpRequest) -> HttpResponseBase:
    """The console for platform roles, else the first tenant's portal, else a page that says whom to ask."""
    user, viewing = signed_in(request), viewing_in(request)
    if viewing is not None:
        return redirect("portal-home", viewing.tenant.slug)
    if user.may_read_platform:
        return redirect("console-overview")
    tenant = list_tenants_for(user).first()
    if tenant is not None:
        return redirect("portal-home", tenant.slug)
    return render(request, "no_tenant.html")

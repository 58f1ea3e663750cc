"""Filters that people give a name, from the bar above a list."""

from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from core.refusals import Conflict, InvalidInput
from dashboard import services
from dashboard.access import people_page, signed_in
from dashboard.models import SavedView
from dashboard.refusals import said
from tenants.actor import user_actor
from tenants.models import Tenant
from tenants.selectors import get_tenant_for


@require_POST
@people_page
def save(request: HttpRequest) -> HttpResponse:
    """Keeps what stands in the list's address under a name."""
    person = signed_in(request)
    path, query = request.POST.get("path", ""), request.POST.get("query", "")
    name = request.POST.get("name", "").strip()
    try:
        services.save_view(
            person,
            tenant=_tenant(request),
            table=request.POST.get("table", "")[:60].replace("\x00", ""),
            name=name,
            query=query.replace("\x00", ""),
            actor=user_actor(person.pk),
        )
    except InvalidInput:
        messages.error(request, _("Give the view a name of 1 to 80 characters; its filter may have 1,000."))
    except Conflict as error:
        messages.error(request, said(error.message))
    else:
        messages.success(request, _("The view “%(name)s” is saved.") % {"name": name})
    return redirect(_back(request, f"{path}?{query}" if query else path))


@require_POST
@people_page
def delete(request: HttpRequest, view_id: UUID) -> HttpResponse:
    """Forgets one of one's own."""
    person = signed_in(request)
    try:
        view = services.delete_view(person, view_id, actor=user_actor(person.pk))
    except SavedView.DoesNotExist as error:
        raise Http404 from error
    messages.success(request, _("The view “%(name)s” is deleted.") % {"name": view.name})
    return redirect(_back(request, request.POST.get("path", "")))


def _back(request: HttpRequest, address: str) -> str:
    """`address` where it is one of ours, the start page else."""
    ours = address.startswith("/") and url_has_allowed_host_and_scheme(
        address, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return address if ours else "/"


def _tenant(request: HttpRequest) -> Tenant | None:
    slug = request.POST.get("tenant", "")
    if not slug:
        return None
    try:
        return get_tenant_for(signed_in(request), slug.replace("\x00", ""))
    except Tenant.DoesNotExist as error:
        raise Http404 from error

"""Portal: the tenant's webhooks, for those who manage it."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import webhook_pages
from dashboard.access import PortalAccess, portal_page
from dashboard.request_side import Side
from dashboard.webhook_pages import Keeper
from tenants.policies.roles import Object


def keeper_of(access: PortalAccess) -> Keeper:
    return Keeper(Side(access.tenant), access.user, lambda action: access.may(action, Object.WEBHOOK))


@portal_page
def page(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponseBase:
    return webhook_pages.one_page(request, keeper_of(access), webhook_id)


@portal_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    return webhook_pages.create(request, keeper_of(access))


@portal_page
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.change(request, keeper_of(access), webhook_id)


@portal_page
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.rotate(request, keeper_of(access), webhook_id)


@portal_page
@require_POST
def test(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.test(request, keeper_of(access), webhook_id)


@portal_page
@require_POST
def switch(request: HttpRequest, access: PortalAccess, webhook_id: UUID, to: str) -> HttpResponse:
    return webhook_pages.switch(request, keeper_of(access), webhook_id, to)


@portal_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.delete(request, keeper_of(access), webhook_id)

"""Portal: the requests of one tenant, for whoever may see its usage."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from dashboard import request_pages
from dashboard.access import PortalAccess, portal_page
from dashboard.request_side import Side
from tenants.policies.roles import Action, Object


def _side(access: PortalAccess) -> Side:
    access.require(Action.VIEW, Object.USAGE)
    return Side(access.tenant)


@portal_page
def log(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    return request_pages.log_page(request, _side(access))


@portal_page
def one(request: HttpRequest, access: PortalAccess, request_id: UUID) -> HttpResponse:
    return request_pages.one_page(request, _side(access), request_id)


@portal_page
def stages(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    return request_pages.stages_page(request, _side(access))


@portal_page
def refused(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    return request_pages.refused_page(request, _side(access))

"""Console: the requests of all tenants."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from dashboard import request_pages
from dashboard.access import console_page
from dashboard.request_side import Side

_SIDE = Side(None)


@console_page
def log(request: HttpRequest) -> HttpResponse:
    return request_pages.log_page(request, _SIDE)


@console_page
def one(request: HttpRequest, request_id: UUID) -> HttpResponse:
    return request_pages.one_page(request, _SIDE, request_id)


@console_page
def stages(request: HttpRequest) -> HttpResponse:
    return request_pages.stages_page(request, _SIDE)


@console_page
def refused(request: HttpRequest) -> HttpResponse:
    return request_pages.refused_page(request, _SIDE)

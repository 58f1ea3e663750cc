"""Console: the platform's own webhooks, which its notices and the alerts of objectives are posted to."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import webhook_pages
from dashboard.access import console_page, signed_in
from dashboard.console_rights import allowed
from dashboard.request_side import Side
from dashboard.webhook_pages import Keeper
from tenants.policies.roles import Object


def keeper_of(request: HttpRequest) -> Keeper:
    return Keeper(Side(None), signed_in(request), lambda action: allowed(request, action, Object.WEBHOOK))


@console_page
def page(request: HttpRequest, webhook_id: UUID) -> HttpResponseBase:
    return webhook_pages.one_page(request, keeper_of(request), webhook_id)


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    return webhook_pages.create(request, keeper_of(request))


@console_page
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.change(request, keeper_of(request), webhook_id)


@console_page
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.rotate(request, keeper_of(request), webhook_id)


@console_page
@require_POST
def test(request: HttpRequest, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.test(request, keeper_of(request), webhook_id)


@console_page
@require_POST
def switch(request: HttpRequest, webhook_id: UUID, to: str) -> HttpResponse:
    return webhook_pages.switch(request, keeper_of(request), webhook_id, to)


@console_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, webhook_id: UUID) -> HttpResponse:
    return webhook_pages.delete(request, keeper_of(request), webhook_id)

"""Dialogs: the same content alone for htmx, which puts it into the page's dialog, or as a page of its own."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails


def sheet(request: HttpRequest, template: str, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
    """Render `template` as a dialog's content or, without htmx, within a page of the same area."""
    alone = bool(HtmxDetails(request))
    chosen = template if alone else "sheet_page.html"
    response = render(request, chosen, {**context, "fragment": template}, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def leave(request: HttpRequest, to: str, *args: object) -> HttpResponse:
    """Go on to a page: what a dialog's form answers once it is done, which htmx would else put into the dialog."""
    response = redirect(to, *args)
    if HtmxDetails(request):
        return HttpResponse(headers={"HX-Redirect": response["Location"]})
    return response


def posted(request: HttpRequest) -> QueryDict | None:
    """What a form is bound to: also an empty post, which is one all the same; None for a form that is only shown."""
    return request.POST if request.method == "POST" else None

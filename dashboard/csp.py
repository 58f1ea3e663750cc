"""Which pages may have styles written by a script: those with charts, the API reference, and no other."""

from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

_MARK: Final = "gatehouse_written_styles"
WRITTEN_STYLES: Final = {"style-src": "'unsafe-inline'"}
"""What plotly and Swagger UI need: they make style sheets of their own and write style attributes."""


def allow_written_styles(request: HttpRequest) -> None:
    """Say that scripts of the page being answered write styles."""
    setattr(request, _MARK, True)


class WrittenStylesMiddleware:
    """Widens the policy of those pages. Below CSPMiddleware."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._next = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._answer(request)
        return _widened(request, self._next(request))

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        return _widened(request, await self._next(request))


def _widened(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if getattr(request, _MARK, False):
        response._csp_update = WRITTEN_STYLES  # type: ignore[attr-defined]  # as django-csp's decorator does
    return response

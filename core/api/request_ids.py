"""One name for each request of the web process: on its answer, in its log lines and in its audit rows."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core import request_context
from core.ids import uuid7

HEADER: Final = "X-Request-Id"
_RIGHT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")  # as long as the audit log's column, safe in a log line
_TAKEN_UNDER: Final = "/api/"
_ATTRIBUTE: Final = "gatehouse_request_id"


def request_id_of(request: Any) -> str:
    """The id of a Django or DRF request, at most 64 characters; made where no middleware has been.

    An `X-Request-Id` of the caller is taken by the control API, when it is made of letters, digits and `._:-`; other
    requests have headers that may say anything, and are written down nowhere.
    """
    request = getattr(request, "_request", request)  # DRF wraps Django's
    found: str | None = getattr(request, _ATTRIBUTE, None)
    if found is None:
        said = request.headers.get(HEADER, "") if request.path.startswith(_TAKEN_UNDER) else ""
        found = said if _RIGHT.fullmatch(said) else str(uuid7())
        setattr(request, _ATTRIBUTE, found)
    return found


class RequestIdMiddleware:
    """Names the request. Answers that bring an id of their own, as the inference endpoints do, keep it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._next = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._answer(request)
        with _named(request):
            return _marked(self._next(request), request)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        with _named(request):
            return _marked(await self._next(request), request)


@contextlib.contextmanager
def _named(request: HttpRequest) -> Iterator[None]:
    """Log lines and audit rows that are written inside carry the request's id."""
    name = request_id_of(request)
    before = request_context.request_id.set(name)
    try:
        with structlog.contextvars.bound_contextvars(request_id=name):
            yield
    finally:
        request_context.request_id.reset(before)


def _marked(response: HttpResponseBase, request: HttpRequest) -> HttpResponseBase:
    if not response.has_header(HEADER):
        response[HEADER] = request_id_of(request)
    return response

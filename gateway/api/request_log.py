"""The request log of pages and of the control API; inference requests are told where they end (relay.request_log)."""

import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.api.request_ids import request_id_of
from gateway.relay.context import trace_id
from gateway.relay.request_log import Mode
from gateway.relay.routes import INFERENCE, OIP

logger = structlog.get_logger("gatehouse.request")

_OF_THE_RELAY: Final = ("/v1/", OIP)


class RequestLogMiddleware:
    """One line for each request that is worth one: see GATEHOUSE_REQUEST_LOG. After RequestIdMiddleware.

    The address is told as its pattern: invitations and log-in links are secrets in a path. A streamed answer's
    duration is up to its head.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._next = get_response
        self._mode = Mode.of(settings.GATEHOUSE.request_log)
        self._slow_seconds: float = settings.GATEHOUSE.request_log_slow_seconds
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._answer(request)
        began = time.monotonic()
        response = self._next(request)
        self._tell(request, response, time.monotonic() - began)
        return response

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        began = time.monotonic()
        response: HttpResponseBase = await self._next(request)
        self._tell(request, response, time.monotonic() - began)
        return response

    def _tell(self, request: HttpRequest, response: HttpResponseBase, seconds: float) -> None:
        if self._mode is Mode.OFF:
            return
        status = response.status_code
        if self._mode is Mode.ERRORS and status < 500 and seconds < self._slow_seconds:
            return  # what a person is refused, they are told; a line for each would be theirs to write
        if request.path in INFERENCE or request.path.startswith(_OF_THE_RELAY):
            return
        found = request.resolver_match
        known = {
            "request_id": request_id_of(request),
            "trace_id": trace_id([(b"traceparent", request.headers.get("traceparent", "").encode())]),
            "tenant": found.kwargs.get("slug") if found is not None else None,
            "status_code": status,
            "duration_ms": round(seconds * 1000, 3),
            "method": request.method,
            "route": found.route if found is not None else None,
        }
        write = logger.error if status >= 500 else logger.info
        write("request", door="web", **{name: value for name, value in known.items() if value is not None})

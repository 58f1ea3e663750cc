"""What the inference endpoints have in common as DRF views: the declared proxy layer.

Authentication and permission classes are the relay's own objects, decisions are the relay's
`Pipeline.prepare`, awaited on the server's loop; so are the bytes. No database connection is used.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, assert_never

import structlog
from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from core.errors import GatehouseError, MethodNotAllowed, NoReadyInstance
from gateway.api.http import error_response, open_response, set_headers, slim_request
from gateway.api.runtime import current_runtime, installed_runtime
from gateway.authentication import MachineAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.context import logged_as
from gateway.relay.dialects.base import id_headers
from gateway.relay.memory import Claim
from gateway.relay.plan import Api, Held, Ready, Rejected, SlimRequest
from gateway.relay.snapshot import Snapshot

logger = structlog.get_logger(__name__)


class _AcceptAnything(BaseContentNegotiation):
    """Clients are answered in JSON or events whatever they say they accept."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        return next(iter(parsers))

    def select_renderer(self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None) -> Any:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class RequestLimitThrottle(BaseThrottle):
    """Shows in schema and views that keys have limits; counting is the pipeline's, once for each request."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return True


class InferenceView(APIView):
    """Base of the views behind a gateway key. `api` says what right it takes, and the words of its errors."""

    authentication_classes: Sequence[type[BaseAuthentication]] = [MachineAuthentication]
    permission_classes = [InferencePermission]
    throttle_classes = [RequestLimitThrottle]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = _AcceptAnything
    api: ClassVar[Api] = Api.CHAT
    slim: SlimRequest
    _claim: Claim | None = None

    def get_authenticators(self) -> list[BaseAuthentication]:
        """The process's one authentication object; before start-up one that knows no key."""
        runtime = installed_runtime()
        return [runtime.authentication if runtime else MachineAuthentication(Snapshot(), time.time)]

    def get_permissions(self) -> list[BasePermission]:
        runtime = installed_runtime()
        return [runtime.permission if runtime else InferencePermission(Snapshot(), time.time)]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """As the relay: method, body, then who asks."""
        runtime = current_runtime()
        if request.method not in self.allowed_methods:
            raise exceptions.MethodNotAllowed(str(request.method))
        self._claim = Claim(runtime.memory)
        self.slim = slim_request(
            request._request,
            self.api,
            body_cap_bytes=settings.GATEHOUSE.body_cap_bytes,
            read_body=request.method == "POST",
            claim=self._claim,
        )
        if request.method == "OPTIONS":
            return
        try:
            async_to_sync(runtime.pipeline.resolve)(runtime.authentication.credential(request))
            super().initial(request, *args, **kwargs)
        except GatehouseError as error:
            runtime.pipeline.note_refusal(self.slim, error)  # what comes after, the pipeline notes
            raise

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """What the request holds of the process's memory is given back with the end of its answer."""
        response = super().finalize_response(request, response, *args, **kwargs)
        claim = self._claim
        if claim is not None and response.streaming:
            weakref.finalize(response, claim.release).atexit = False  # sent, or given up on the way
        elif claim is not None:
            claim.release()
        return response

    def options(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:  # type: ignore[override]  # no metadata
        response = HttpResponse(status=204, headers={"Allow": ", ".join(self.allowed_methods)})
        set_headers(response, id_headers(self.api, self.slim.request_id))
        del response["content-type"]
        return response

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {}  # DRF would say Allow and Vary in every answer

    def get_exception_handler(self) -> Callable[..., Any]:
        return self._render

    def _render(self, error: Exception, context: dict[str, Any]) -> HttpResponse:
        """Errors as the relay tells them."""
        slim = getattr(self, "slim", None)
        if isinstance(error, GatehouseError):
            return error_response(error, self.api, slim)
        if isinstance(error, exceptions.MethodNotAllowed):
            allowed = ", ".join(self.allowed_methods).encode()
            return error_response(MethodNotAllowed(headers=((b"allow", allowed),)), self.api, slim)
        # The last line of defence, as in the relay: a defect of ours must still be answered in shape.
        request = context["request"]
        with logged_as(slim, getattr(request, "_user", None)):
            logger.error("request_failed", exc_info=error)
        return error_response(GatehouseError(), self.api, slim)

    def forward(self) -> HttpResponseBase:
        """Decide about the request and carry it."""
        runtime = current_runtime()
        decision = async_to_sync(runtime.pipeline.prepare)(self.slim)
        match decision:
            case Rejected(error=error):
                raise error
            case Held(eta_seconds=eta):
                raise NoReadyInstance(retry_after_seconds=eta or 1.0)
            case Ready():
                scope = getattr(self.request._request, "scope", None)
                return async_to_sync(open_response)(runtime.carrier(decision), scope)
            case _:
                assert_never(decision)

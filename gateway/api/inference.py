"""The OpenAI endpoints as DRF views: the declared proxy layer.

Authentication and permission classes are the relay's own objects, decisions are the relay's
`Pipeline.prepare`, awaited on the server's loop; so are the bytes. No database connection is used.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, assert_never

import structlog
from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from core.errors import GatehouseError, MethodNotAllowed, NoReadyInstance
from core.telemetry.metrics import record_refusal
from gateway.api import openapi as openapi
from gateway.api import schemas
from gateway.api.http import error_response, json_response, open_response, slim_request
from gateway.api.runtime import current_runtime, installed_runtime
from gateway.authentication import ApiKeyAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.plan import Api, Held, Ready, Rejected, SlimRequest
from gateway.relay.snapshot import Snapshot

logger = structlog.get_logger(__name__)

_ERRORS: Final = {
    status: OpenApiResponse(schemas.ErrorSerializer, description=text)
    for status, text in {
        400: "The body is not valid; `param` names the member at fault.",
        401: "No key, or one that is unknown, revoked or expired.",
        403: "The tenant is suspended, or the key lacks the scope.",
        404: "The model does not exist, or is not granted.",
        413: "The body is too large.",
        429: "A limit of yours is reached; see Retry-After.",
        503: "The gateway cannot serve it now; see Retry-After.",
    }.items()
}
_LIMIT_HEADERS: Final = [
    OpenApiParameter(name, int, OpenApiParameter.HEADER, response=[200, 429], description=text)
    for name, text in {
        "x-ratelimit-limit-requests": "Requests that the key may make in a minute.",
        "x-ratelimit-remaining-requests": "Those that are left now.",
    }.items()
]


class _AcceptAnything(BaseContentNegotiation):
    """OpenAI clients are answered in JSON or events whatever they say they accept."""

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
    """Base of the views behind a gateway key."""

    authentication_classes: Sequence[type[BaseAuthentication]] = [ApiKeyAuthentication]
    permission_classes = [InferencePermission]
    throttle_classes = [RequestLimitThrottle]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = _AcceptAnything
    api: ClassVar[Api] = Api.CHAT
    slim: SlimRequest

    def get_authenticators(self) -> list[BaseAuthentication]:
        """The process's one authentication object; before start-up one that knows no key."""
        runtime = installed_runtime()
        return [runtime.authentication if runtime else ApiKeyAuthentication(Snapshot(), time.time)]

    def get_permissions(self) -> list[BasePermission]:
        runtime = installed_runtime()
        return [runtime.permission if runtime else InferencePermission(Snapshot(), time.time)]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """As the relay: method, body, then who asks."""
        runtime = current_runtime()
        if request.method not in self.allowed_methods:
            raise exceptions.MethodNotAllowed(str(request.method))
        self.slim = slim_request(
            request._request,
            self.api,
            body_cap_bytes=settings.GATEHOUSE.body_cap_bytes,
            read_body=request.method == "POST",
        )
        if request.method == "OPTIONS":
            return
        try:
            async_to_sync(runtime.pipeline.resolve)(runtime.authentication.credential(request))
            super().initial(request, *args, **kwargs)
        except GatehouseError as error:
            record_refusal("drf", error.code)  # what comes after, the pipeline counts
            raise

    def options(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:  # type: ignore[override]  # no metadata
        headers = {"Allow": ", ".join(self.allowed_methods), "x-request-id": str(self.slim.request_id)}
        response = HttpResponse(status=204, headers=headers)
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
            return error_response(error, slim)
        if isinstance(error, exceptions.MethodNotAllowed):
            allowed = ", ".join(self.allowed_methods).encode()
            return error_response(MethodNotAllowed(headers=((b"allow", allowed),)), slim)
        # The last line of defence, as in the relay: a defect of ours must still be answered in shape.
        logger.error("request failed", exc_info=error)
        return error_response(GatehouseError(), slim)

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
                return async_to_sync(open_response)(runtime.exchange(decision))
            case _:
                assert_never(decision)


class ChatCompletionsView(InferenceView):
    """Chat with a model."""

    @extend_schema(
        operation_id="create_chat_completion",
        tags=["inference"],
        request=schemas.ChatRequestSerializer,
        responses={200: schemas.ChatResponseSerializer, **_ERRORS},
        parameters=_LIMIT_HEADERS,
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Answer a conversation, whole or (with `stream`) as server-sent events."""
        return self.forward()


class CompletionsView(InferenceView):
    """Continue a text."""

    api = Api.COMPLETIONS

    @extend_schema(
        operation_id="create_completion",
        tags=["inference"],
        request=schemas.CompletionRequestSerializer,
        responses={200: schemas.CompletionResponseSerializer, **_ERRORS},
        parameters=_LIMIT_HEADERS,
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Continue a prompt, whole or (with `stream`) as server-sent events."""
        return self.forward()


class ModelsView(InferenceView):
    """The models that the key may use."""

    @extend_schema(
        operation_id="list_models", tags=["inference"], responses={200: schemas.ServedModelListSerializer, **_ERRORS}
    )
    def get(self, request: Request) -> HttpResponse:
        """All of them, by name."""
        return json_response(async_to_sync(current_runtime().pipeline.models)(self.slim), self.slim)


class ModelView(InferenceView):
    """One model."""

    @extend_schema(
        operation_id="get_model", tags=["inference"], responses={200: schemas.ServedModelSerializer, **_ERRORS}
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """The model, if the key may use it."""
        return json_response(async_to_sync(current_runtime().pipeline.models)(self.slim), self.slim)

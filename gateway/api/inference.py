"""The inference endpoints as DRF views; their addresses are gateway.relay.routes' for both doors."""

from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.serializers import Serializer

from gateway.api import openapi as openapi
from gateway.api.base import InferenceView
from gateway.api.http import json_response
from gateway.api.runtime import current_runtime
from gateway.api.schemas import anthropic, chat, errors, responses, tensors, vectors
from gateway.relay.plan import Api

_REFUSALS: Final = {
    400: "The body is not valid; an error in OpenAI's shape names the member at fault as `param`.",
    401: "No key, or one that is unknown, revoked or expired.",
    403: "The tenant is suspended, or the key lacks the scope.",
    404: "The model does not exist, or is not granted.",
    413: "The body is too large.",
    415: "The body's Content-Encoding is none of gzip, deflate and identity.",
    429: "A limit of yours is reached; see Retry-After.",
    502: "The model's engine failed, and no other could be tried.",
    503: "The gateway cannot serve it now; see Retry-After.",
    504: "The model's engine did not answer in time.",
}
_LIMIT_HEADERS: Final = [
    OpenApiParameter(name, int, OpenApiParameter.HEADER, response=[200, 429], description=text)
    for name, text in {
        "x-ratelimit-limit-requests": "Of the limits of requests the one with the least left: how many it allows.",
        "x-ratelimit-remaining-requests": "Those that are left of it, this one taken off.",
        "x-ratelimit-limit-tokens": "Of the limits of tokens the one with the least left: how many it allows.",
        "x-ratelimit-remaining-tokens": "Those that are left of it; the most that this request can use is taken off.",
    }.items()
] + [
    OpenApiParameter(name, str, OpenApiParameter.HEADER, response=[200, 429], description=text)
    for name, text in {
        "x-ratelimit-reset-requests": "When all of it is back if nothing more is used, as in 6m0s.",
        "x-ratelimit-reset-tokens": "The same of the tokens.",
    }.items()
]


def _refusals(shape: type[Serializer[Any]]) -> dict[Any, Any]:
    return {status: OpenApiResponse(shape, description=text) for status, text in _REFUSALS.items()}


_OPENAI: Final = _refusals(errors.ErrorSerializer)
_ANTHROPIC: Final = _refusals(errors.AnthropicErrorSerializer)
_OIP: Final = _refusals(tensors.InferErrorSerializer)


def _described(
    operation_id: str,
    asked: type[Serializer[Any]],
    answered: type[Serializer[Any]],
    *,
    events: str = "",
    refusals: dict[Any, Any] = _OPENAI,
) -> Callable[..., Any]:
    """How an endpoint stands in the schema. `events`: what a streamed answer consists of, "" where there is none."""
    answers: dict[Any, Any] = {(200, "application/json"): OpenApiResponse(answered, description="The whole answer.")}
    if events:
        answers[200, "text/event-stream"] = OpenApiResponse(OpenApiTypes.STR, description=f"The answer. {events}")
    return extend_schema(
        operation_id=operation_id,
        tags=["inference"],
        request=asked,
        responses={**answers, **refusals},
        parameters=_LIMIT_HEADERS,
    )


_CHUNKS: Final = (
    "With `stream` server-sent events: chunks as `data:` lines, `data: [DONE]` at the end, comments while there is "
    "nothing to say; an error in the middle is an event with `error`, and no [DONE] follows."
)
_NAMED_EVENTS: Final = (
    "With `stream` server-sent events, each named by its `type`; an error in the middle is an `error` event, and it is "
    "the last."
)


class ChatCompletionsView(InferenceView):
    """Chat with a model."""

    api = Api.CHAT

    @_described("create_chat_completion", chat.ChatRequestSerializer, chat.ChatResponseSerializer, events=_CHUNKS)
    def post(self, request: Request) -> HttpResponseBase:
        """Answer a conversation, whole or (with `stream`) as server-sent events."""
        return self.forward()


class CompletionsView(InferenceView):
    """Continue a text."""

    api = Api.COMPLETIONS

    @_described(
        "create_completion", chat.CompletionRequestSerializer, chat.CompletionResponseSerializer, events=_CHUNKS
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Continue a prompt, whole or (with `stream`) as server-sent events."""
        return self.forward()


class EmbeddingsView(InferenceView):
    """Vectors that stand for texts."""

    api = Api.EMBEDDINGS

    @_described("create_embedding", vectors.EmbeddingsRequestSerializer, vectors.EmbeddingsResponseSerializer)
    def post(self, request: Request) -> HttpResponseBase:
        """A vector for each text. The key needs the scope `embed`."""
        return self.forward()


class RerankView(InferenceView):
    """How well documents answer a query."""

    api = Api.RERANK

    @_described("rerank", vectors.RerankRequestSerializer, vectors.RerankResponseSerializer)
    def post(self, request: Request) -> HttpResponseBase:
        """The documents by their relevance to the query. The key needs the scope `embed`."""
        return self.forward()


class TokenizeView(InferenceView):
    """A text in a model's tokens."""

    api = Api.TOKENIZE

    @_described("tokenize", vectors.TokenizeRequestSerializer, vectors.TokenizeResponseSerializer)
    def post(self, request: Request) -> HttpResponseBase:
        """The tokens of a prompt, or of a conversation as the model's template writes it."""
        return self.forward()


class ResponsesView(InferenceView):
    """OpenAI's Responses."""

    api = Api.RESPONSES

    @_described(
        "create_response", responses.ResponsesRequestSerializer, responses.ResponseSerializer, events=_NAMED_EVENTS
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Answer items of a conversation, whole or (with `stream`) as server-sent events."""
        return self.forward()


class MessagesView(InferenceView):
    """Anthropic's Messages."""

    api = Api.MESSAGES

    @_described(
        "create_message",
        anthropic.MessagesRequestSerializer,
        anthropic.MessageResponseSerializer,
        events=_NAMED_EVENTS,
        refusals=_ANTHROPIC,
    )
    def post(self, request: Request) -> HttpResponseBase:
        """Answer a conversation, whole or (with `stream`) as server-sent events."""
        return self.forward()


class CountTokensView(InferenceView):
    """How many tokens a Messages request has."""

    api = Api.COUNT_TOKENS

    @_described(
        "count_tokens",
        anthropic.CountTokensRequestSerializer,
        anthropic.CountTokensResponseSerializer,
        refusals=_ANTHROPIC,
    )
    def post(self, request: Request) -> HttpResponseBase:
        """The tokens of what would be sent, without an answer."""
        return self.forward()


class ModelsView(InferenceView):
    """The models that the key may use."""

    @extend_schema(
        operation_id="list_models", tags=["inference"], responses={200: chat.ServedModelListSerializer, **_OPENAI}
    )
    def get(self, request: Request) -> HttpResponse:
        """All of them, by name."""
        return json_response(async_to_sync(current_runtime().pipeline.models)(self.slim), self.slim)


class ModelView(InferenceView):
    """One model."""

    @extend_schema(operation_id="get_model", tags=["inference"], responses={200: chat.ServedModelSerializer, **_OPENAI})
    def get(self, request: Request, name: str) -> HttpResponse:
        """The model, if the key may use it."""
        return json_response(async_to_sync(current_runtime().pipeline.models)(self.slim), self.slim)


class InferView(InferenceView):
    """Tensors in, tensors out: the Open Inference Protocol, version 2."""

    api = Api.INFER

    @_described("infer", tensors.InferRequestSerializer, tensors.InferResponseSerializer, refusals=_OIP)
    def post(self, request: Request, name: str) -> HttpResponseBase:
        """Ask a model that is served by that protocol. `name` may end in `/versions/{version}`. JSON only."""
        return self.forward()


class InferModelView(InferenceView):
    """A model of the Open Inference Protocol."""

    api = Api.INFER

    @extend_schema(
        operation_id="get_infer_model", tags=["inference"], responses={200: tensors.InferModelSerializer, **_OIP}
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """The model, if it can be asked now. `name` may end in `/ready`."""
        return json_response(async_to_sync(current_runtime().pipeline.models)(self.slim), self.slim)


VIEWS: Final[dict[Api, type[InferenceView]]] = {
    view.api: view
    for view in (
        ChatCompletionsView,
        CompletionsView,
        EmbeddingsView,
        RerankView,
        TokenizeView,
        ResponsesView,
        MessagesView,
        CountTokensView,
    )
}
"""The view of each endpoint in gateway.relay.routes.INFERENCE."""

"""The inference endpoints by their path: one table for both doors."""

import re
from typing import Final, NamedTuple

from gateway.relay.plan import Api

INFERENCE: Final = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/rerank": Api.RERANK,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.COUNT_TOKENS,
    "/tokenize": Api.TOKENIZE,
}
"""Answered to POST."""

MODELS: Final = "/v1/models"
RESPONSES: Final = "/v1/responses"
REALTIME: Final = "/v1/realtime"
"""A websocket."""

OIP: Final = "/v2"
OIP_LIVE: Final = "/v2/health/live"
OIP_READY: Final = "/v2/health/ready"
OIP_MODELS: Final = "/v2/models/"
"""The Open Inference Protocol, version 2; behind the last a model's name."""

_infer = re.compile(r"/v2/models/(?P<model>.+?)(?:/versions/(?P<version>[^/]+))?/infer", re.DOTALL)

ENGINE_PATHS: Final = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.EMBEDDINGS: "/v1/embeddings",
    Api.RERANK: "/v1/rerank",
    Api.TOKENIZE: "/tokenize",
}
"""What engines that speak OpenAI's words are asked at, after their base path."""


class InferPath(NamedTuple):
    """Whom an inference of the Open Inference Protocol is asked of; `version` is empty where none is named."""

    model: str
    version: str


def find_infer(path: str) -> InferPath | None:
    """What the address of such an inference says; None for any other address."""
    found = _infer.fullmatch(path)
    return None if found is None else InferPath(found["model"], found["version"] or "")


def posted_api(path: str) -> Api | None:
    """The endpoint that answers to POST there."""
    api = INFERENCE.get(path)
    return Api.INFER if api is None and find_infer(path) is not None else api


def api_near(path: str) -> Api:
    """Whose words errors are told in at any address."""
    return Api.INFER if path == OIP or path.startswith("/v2/") else INFERENCE.get(path, Api.CHAT)

"""The inference endpoints by their path: one table for both doors."""

from typing import Final

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

ENGINE_PATHS: Final = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.EMBEDDINGS: "/v1/embeddings",
    Api.RERANK: "/v1/rerank",
    Api.TOKENIZE: "/tokenize",
}
"""What engines that speak OpenAI's words are asked at, after their base path."""

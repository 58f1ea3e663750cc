"""How to talk to a Text Generation Inference server by its OpenAI routes."""

from typing import Any

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.tgi.load import parse_load
from gpupool.engines.tokens import tokenized
from gpupool.engines.translation import decode


class _Info(msgspec.Struct):
    model_id: str


class TgiWire:
    """`/health` looks at the device without a request; only a server that has answered nothing yet tries one token."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest | None:
        return WireRequest("GET", "/info")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        try:
            return (decode(body, _Info).model_id,)
        except ValueError as error:
            raise ValueError(f"This is not a list of models: {error}.") from error

    def metrics(self) -> WireRequest | None:
        return WireRequest("GET", "/metrics")

    def warm_up(self, served_name: str) -> WireRequest:
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1}}
        return WireRequest("POST", "/generate", msgspec.json.encode(body))

    def parse_load(self, text: str) -> EngineLoad:
        return parse_load(text)

    def translate(self, call: OpenAICall) -> Translation | None:
        return TgiTokenize(call) if call.api == "tokenize" else None


class Token(msgspec.Struct):
    """Of `/tokenize`."""

    id: int


class _ChatTokens(msgspec.Struct):
    tokenize_response: list[Token]


class TgiTokenize:
    """`/tokenize` for a prompt, `/chat_tokenize` for messages."""

    def __init__(self, call: OpenAICall) -> None:
        asked = Asked(call, "TGI's /tokenize")
        self._served_name = call.served_name
        self._chat = "messages" in asked.left
        if self._chat:
            self._request = WireRequest("POST", "/chat_tokenize", call.body)
        else:
            asked.only("add_special_tokens", True)
            body: dict[str, Any] = {"inputs": asked.prompt()}
            self._request = WireRequest("POST", "/tokenize", msgspec.json.encode(body))

    @property
    def request(self) -> WireRequest:
        return self._request

    def feed(self, data: bytes) -> bytes:
        raise ValueError("token counts are not streamed")

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes | WireRequest:
        tokens = decode(body, _ChatTokens).tokenize_response if self._chat else decode(body, list[Token])
        return tokenized([token.id for token in tokens], served_name=self._served_name)

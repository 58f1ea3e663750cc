"""How to talk to a llama.cpp server."""

import msgspec

from gpupool.engines.base import EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.listing import parse_model_list
from gpupool.engines.llamacpp.load import parse_load
from gpupool.engines.llamacpp.tokenize import LlamaCppTokenize


class LlamaCppWire:
    """`/health` answers 503 while the model loads and 200 after."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        return parse_model_list(body)

    def metrics(self) -> WireRequest | None:
        return WireRequest("GET", "/metrics")

    def warm_up(self, served_name: str) -> WireRequest:
        # cache_prompt off: the warm-up must not leave a prompt in a slot that a first request could be matched to.
        body = {"model": served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "cache_prompt": False}
        return WireRequest("POST", "/v1/completions", msgspec.json.encode(body))

    def parse_load(self, text: str) -> EngineLoad:
        return parse_load(text)

    def translate(self, call: OpenAICall) -> Translation | None:
        return LlamaCppTokenize(call) if call.api == "tokenize" else None

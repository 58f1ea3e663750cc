"""How to talk to a vLLM server."""

import msgspec

from gpupool.engines.base import EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.listing import parse_model_list
from gpupool.engines.vllm.load import parse_load


class VllmWire:
    """`/health` is not answered before the model is loaded; 503 from it means a dead engine core."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        return parse_model_list(body)

    def metrics(self) -> WireRequest | None:
        return WireRequest("GET", "/metrics")

    def warm_up(self, served_name: str) -> WireRequest:
        # `/invocations` does what the server was started for: one that embeds or ranks has no /v1/completions.
        # It takes the body as the first kind of request that has all its members here.
        body = {"model": served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        pooling = {"input": "Hello", "query": "Hello", "documents": ["Hello"]}
        return WireRequest("POST", "/invocations", msgspec.json.encode(body | pooling))

    def parse_load(self, text: str) -> EngineLoad:
        return parse_load(text)

    def translate(self, call: OpenAICall) -> Translation | None:
        return None

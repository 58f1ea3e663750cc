"""Any server that speaks the OpenAI API and nothing more."""

import msgspec

from gpupool.engines.base import EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.listing import parse_model_list
from gpupool.engines.openai.load import parse_load


class OpenAIWire:
    """The least that an OpenAI-compatible server answers to."""

    def health(self) -> WireRequest:
        # There is no health endpoint in OpenAI's API; the list of models is the cheapest thing that proves life.
        return WireRequest("GET", "/v1/models")

    def models(self) -> WireRequest:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        return parse_model_list(body)

    def metrics(self) -> WireRequest | None:
        return None

    def warm_up(self, served_name: str) -> WireRequest:
        body = msgspec.json.encode({"model": served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0})
        return WireRequest("POST", "/v1/completions", body)

    def parse_load(self, text: str) -> EngineLoad:
        return parse_load(text)

    def translate(self, call: OpenAICall) -> Translation | None:
        return None

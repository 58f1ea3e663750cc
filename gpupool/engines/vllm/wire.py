"""How to talk to a vLLM server."""

import msgspec

from gpupool.engines.base import EngineLoad, WireRequest
from gpupool.engines.vllm.load import parse_load


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


class VllmWire:
    """`/health` is not answered before the model is loaded; 503 from it means a dead engine core."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        try:
            return tuple(model.id for model in msgspec.json.decode(body, type=_ModelList).data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not vLLM's list of models: {error}") from error

    def metrics(self) -> WireRequest | None:
        return WireRequest("GET", "/metrics")

    def warm_up(self, served_name: str) -> WireRequest:
        body = {"model": served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        return WireRequest("POST", "/v1/completions", msgspec.json.encode(body))

    def parse_load(self, prometheus_text: str) -> EngineLoad:
        return parse_load(prometheus_text)

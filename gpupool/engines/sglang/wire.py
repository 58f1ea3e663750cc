"""How to talk to an SGLang server."""

from typing import Any

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.listing import parse_model_list
from gpupool.engines.sglang.load import parse_load
from gpupool.engines.translation import decode


class SglangWire:
    """`/health` generates nothing; `/health_generate`, which does, is left alone."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest | None:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        return parse_model_list(body)

    def metrics(self) -> WireRequest | None:
        return WireRequest("GET", "/metrics")

    def warm_up(self, served_name: str) -> WireRequest:
        body = {"model": served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        return WireRequest("POST", "/v1/completions", msgspec.json.encode(body))

    def parse_load(self, text: str) -> EngineLoad:
        return parse_load(text)

    def translate(self, call: OpenAICall) -> Translation | None:
        return SglangRerank(call) if call.api == "rerank" else None


class _Scored(msgspec.Struct):
    score: float | list[float]
    index: int
    document: object = None
    meta_info: dict[str, Any] | None = None


class SglangRerank:
    """Asked as it is; answered with a bare list, which becomes the object that other engines answer with."""

    def __init__(self, call: OpenAICall) -> None:
        asked = Asked(call, "SGLang's /v1/rerank")
        self._model = call.served_name
        self._most = asked.integer("top_n")
        self._documents = asked.flag("return_documents")
        self._request = WireRequest("POST", call.path, call.body)

    @property
    def request(self) -> WireRequest:
        return self._request

    def feed(self, data: bytes) -> bytes:
        raise ValueError("scores are not streamed")

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes | WireRequest:
        if body.lstrip().startswith(b"{"):
            return body
        scored = decode(body, list[_Scored])
        results: list[dict[str, Any]] = []
        for item in scored[: self._most]:
            score = item.score if isinstance(item.score, float) else (item.score or [0.0])[0]
            result: dict[str, Any] = {"index": item.index, "relevance_score": score}
            if item.document is not None and self._documents is not False:
                result["document"] = {"text": item.document}
            results.append(result)
        answer: dict[str, Any] = {"model": self._model, "results": results}
        counts = [(item.meta_info or {}).get("prompt_tokens") for item in scored]
        if counts and all(isinstance(count, int) for count in counts):
            total = sum(count for count in counts if isinstance(count, int))
            answer["usage"] = {"prompt_tokens": total, "total_tokens": total}
        return msgspec.json.encode(answer)

"""vLLM's first server, `python -m vllm.entrypoints.api_server`: `POST /generate` and `/health`, nothing more.

Its answers hold the whole text so far, prompt included, and neither token counts nor why the text ended.
Source: vllm/entrypoints/api_server.py; since 2026 one of vLLM's examples, applications/api_server/server.py.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.deltas import Delta, Done, Growth, Step
from gpupool.engines.frames import JsonLines
from gpupool.engines.translation import NativeTranslation, chunks_for, decode

_ENGINE: Final = "vLLM's /generate"
_SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "stop_token_ids", "ignore_eos", "bad_words", "skip_special_tokens", "logit_bias",
)  # fmt: skip
"""SamplingParams, which the server makes of the body: any other member is an error there."""


class VllmGenerateWire:
    """Completions only."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest | None:
        return None

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        raise ValueError("this server lists no models")

    def metrics(self) -> WireRequest | None:
        return None

    def warm_up(self, served_name: str) -> WireRequest:
        body = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
        return WireRequest("POST", "/generate", msgspec.json.encode(body))

    def parse_load(self, text: str) -> EngineLoad:
        return EngineLoad()

    def translate(self, call: OpenAICall) -> Translation | None:
        if call.api != "completions":
            raise CallNotSupported(f"{_ENGINE} completes text; it cannot do {call.api}.")
        asked = Asked(call, _ENGINE)
        prompt = asked.prompt()
        body: dict[str, Any] = {"prompt": prompt, "stream": call.stream}
        body["max_tokens"] = asked.max_tokens() or 16  # OpenAI's default, and SamplingParams'
        if stops := asked.stop():
            body["stop"] = stops
        for name in _SAMPLING:
            if name in asked.left:
                body[name] = asked.left.pop(name)
        # Of several answers, the engine's later versions tell those that grew in a step, not which ones they are.
        asked.only("n", 1)
        asked.only("echo", False)
        asked.only("best_of", 1)
        asked.nothing_left()
        request = WireRequest("POST", "/generate", msgspec.json.encode(body))
        return NativeTranslation(request, JsonLines(), _Decoder(prompt), chunks_for(call))


class _Texts(msgspec.Struct):
    text: list[str]


class _Decoder:
    def __init__(self, prompt: str) -> None:
        self._grown = Growth(prompt)
        self._text: str | None = None

    def decode(self, frame: bytes) -> Sequence[Step]:
        [self._text] = decode(frame, _Texts).text
        return self._deltas(self._text, last=False)

    def end(self) -> Sequence[Step]:
        # The body's end is the only sign there is; of a connection that broke, the relay knows better than this.
        if self._text is None:
            return []
        return [*self._deltas(self._text, last=True), Delta(finish_reason="stop"), Done()]

    def whole(self, body: bytes) -> Sequence[Step]:
        [self._text] = decode(body, _Texts).text
        return self.end()

    def _deltas(self, text: str, *, last: bool) -> list[Step]:
        grown = self._grown.grow(text, last=last)
        return [Delta(grown)] if grown else []

"""Text Generation Inference's native `/generate` and `/generate_stream`: completions, a token an event."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, OpenAICall, Translation, WireRequest
from gpupool.engines.deltas import Delta, Done, EngineFailure, Step
from gpupool.engines.frames import SseData
from gpupool.engines.tgi.wire import TgiWire, Token
from gpupool.engines.translation import NativeTranslation, chunks_for, decode

_ENGINE: Final = "TGI's /generate"
_PARAMETERS: Final = (
    "top_k", "typical_p", "seed", "repetition_penalty", "frequency_penalty", "truncate", "watermark", "adapter_id",
    "do_sample", "grammar",
)  # fmt: skip
_FINISH: Final = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}
_STATUS: Final = {"validation": 422, "overloaded": 429}


class TgiGenerateWire(TgiWire):
    """The same server, asked for completions in its own words."""

    def translate(self, call: OpenAICall) -> Translation | None:
        if call.api != "completions":
            raise CallNotSupported(f"{_ENGINE} completes text; it cannot do {call.api}.")
        asked = Asked(call, _ENGINE)
        prompt = asked.prompt()
        parameters: dict[str, Any] = {"max_new_tokens": asked.max_tokens() or 16, "details": True}
        parameters |= _sampling(asked)
        if stops := asked.stop():
            parameters["stop"] = stops
        if (penalty := asked.number("presence_penalty")) not in (None, 0):
            raise CallNotSupported(f"{_ENGINE} has no presence_penalty; {penalty} cannot be asked of it.")
        parameters |= {name: asked.left.pop(name) for name in _PARAMETERS if name in asked.left}
        asked.only("n", 1)
        asked.only("best_of", 1)
        asked.only("echo", False)
        asked.nothing_left()
        path = "/generate_stream" if call.stream else "/generate"
        request = WireRequest("POST", path, msgspec.json.encode({"inputs": prompt, "parameters": parameters}))
        return NativeTranslation(request, SseData(), _Decoder(prompt), chunks_for(call))


def _sampling(asked: Asked) -> dict[str, Any]:
    """Temperature and top_p; it refuses the values by which OpenAI's clients turn them off, and takes no sampling."""
    sampling: dict[str, Any] = {}
    temperature, top_p = asked.number("temperature"), asked.number("top_p")
    if temperature == 0:
        return {"do_sample": False}
    if temperature is not None:
        sampling["temperature"] = temperature
    if top_p is not None and top_p < 1:
        sampling["top_p"] = top_p
    # OpenAI samples unless told otherwise, TGI decodes greedily.
    return {"do_sample": True} | sampling


class _StreamToken(msgspec.Struct):
    text: str = ""
    special: bool = False


class _Details(msgspec.Struct):
    finish_reason: str
    generated_tokens: int | None = None
    input_length: int | None = None


class _Event(msgspec.Struct):
    token: _StreamToken | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: str | None = None
    error_type: str = ""


class _Decoder:
    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._kept: list[Step] | None = None  # a whole answer, while the prompt's tokens are counted
        self._generated: int | None = None

    def decode(self, frame: bytes) -> Sequence[Step]:
        event = decode(frame, _Event)
        if event.error is not None:
            return [EngineFailure(event.error, _STATUS.get(event.error_type, 500))]
        if event.token is None:
            raise ValueError("an event without a token")
        text = "" if event.token.special else event.token.text
        if event.details is None:
            return [Delta(text)] if text else []
        details = event.details
        finish = Delta(text, finish_reason=_FINISH.get(details.finish_reason, "stop"))
        return [finish, Done(details.input_length, details.generated_tokens)]

    def end(self) -> Sequence[Step]:
        return []

    def whole(self, body: bytes) -> Sequence[Step] | WireRequest:
        if self._kept is not None:
            return [*self._kept, Done(len(decode(body, list[Token])), self._generated)]
        event = decode(body, _Event)
        if event.error is not None:
            return [EngineFailure(event.error, _STATUS.get(event.error_type, 500))]
        if event.generated_text is None or event.details is None:
            raise ValueError("an answer without generated_text or details")
        details = event.details
        steps: list[Step] = [Delta(event.generated_text, finish_reason=_FINISH.get(details.finish_reason, "stop"))]
        if details.input_length is not None:
            return [*steps, Done(details.input_length, details.generated_tokens)]
        # A whole answer does not say how long its prompt was, unlike a stream's end.
        self._kept, self._generated = steps, details.generated_tokens
        return WireRequest("POST", "/tokenize", msgspec.json.encode({"inputs": self._prompt}))

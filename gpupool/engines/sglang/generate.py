"""SGLang's native `POST /generate`: completions, with the whole text so far in each event.

The server must not run with `--stream-output` (later `--incremental-streaming-output`), by which events hold only
what is new.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, OpenAICall, Translation, WireRequest
from gpupool.engines.deltas import Chunks, Delta, Done, EngineFailure, Growth, Step
from gpupool.engines.frames import SseData
from gpupool.engines.sglang.wire import SglangWire
from gpupool.engines.translation import NativeTranslation, chunks_for, decode

_ENGINE: Final = "SGLang's /generate"
_SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "json_schema", "regex", "ebnf", "n",
)  # fmt: skip
_TOP_LEVEL: Final = ("lora_path", "rid", "session_params", "custom_logit_processor", "data_parallel_rank", "priority")


class SglangGenerateWire(SglangWire):
    """The same server, asked for completions in its own words."""

    def warm_up(self, served_name: str) -> WireRequest:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        return WireRequest("POST", "/generate", msgspec.json.encode(body))

    def translate(self, call: OpenAICall) -> Translation | None:
        if call.api != "completions":
            raise CallNotSupported(f"{_ENGINE} completes text; it cannot do {call.api}.")
        asked = Asked(call, _ENGINE)
        sampling: dict[str, Any] = {"max_new_tokens": asked.max_tokens() or 16}  # OpenAI's default, not SGLang's 128
        if stops := asked.stop():
            sampling["stop"] = stops
        if (seed := asked.integer("seed")) is not None:
            sampling["sampling_seed"] = seed
        sampling |= {name: asked.left.pop(name) for name in _SAMPLING if name in asked.left}
        body = {"text": asked.prompt(), "sampling_params": sampling, "stream": call.stream}
        body |= {name: asked.left.pop(name) for name in _TOP_LEVEL if name in asked.left}
        asked.only("echo", False)
        asked.only("best_of", 1)
        asked.nothing_left()
        chunks = chunks_for(call)
        request = WireRequest("POST", "/generate", msgspec.json.encode(body))
        return NativeTranslation(request, SseData(), _Decoder(chunks, sampling.get("n", 1)), chunks)


class _Finish(msgspec.Struct):
    type: str  # stop, length, abort
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    id: str | None = None
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Error(msgspec.Struct):
    message: str
    code: int | None = None


class _Event(msgspec.Struct):
    text: str | None = None
    meta_info: _Meta | None = None
    index: int = 0
    error: _Error | None = None


class _Decoder:
    def __init__(self, chunks: Chunks, choices: int) -> None:
        self._chunks = chunks
        self._choices = choices
        self._grown: dict[int, Growth] = {}
        self._counts: dict[int, _Meta] = {}
        self._finished: set[int] = set()

    def decode(self, frame: bytes) -> Sequence[Step]:
        return [self._done()] if frame == b"[DONE]" else self._take(decode(frame, _Event))

    def end(self) -> Sequence[Step]:
        return [self._done()] if len(self._finished) >= self._choices else []

    def whole(self, body: bytes) -> Sequence[Step]:
        if body.lstrip().startswith(b"["):
            events = decode(body, list[_Event])
            for index, event in enumerate(events):
                event.index = index
        else:
            events = [decode(body, _Event)]
        steps = [step for event in events for step in self._take(event)]
        return [*steps, self._done()]

    def _take(self, event: _Event) -> list[Step]:
        if event.error is not None:
            return [EngineFailure(event.error.message, event.error.code or 500)]
        meta = event.meta_info
        if event.text is None or meta is None:
            raise ValueError("an event without text or meta_info")
        if meta.id and not self._counts:
            self._chunks.identity = f"cmpl-{meta.id}"
        self._counts[event.index] = meta
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            return [EngineFailure(finish.message or "The engine gave the request up.", finish.status_code or 500)]
        new = self._grown.setdefault(event.index, Growth()).grow(event.text, last=finish is not None)
        if finish is None:
            return [Delta(new, index=event.index)] if new else []
        self._finished.add(event.index)
        reason = "length" if finish.type == "length" else "stop"
        return [Delta(new, index=event.index, finish_reason=reason)]

    def _done(self) -> Done:
        counts = [self._counts[index] for index in sorted(self._counts)]
        if not counts:
            return Done()
        completion = [meta.completion_tokens for meta in counts]
        known = [count for count in completion if count is not None]
        return Done(
            prompt_tokens=counts[0].prompt_tokens,  # the one prompt of all choices
            completion_tokens=sum(known) if len(known) == len(completion) else None,
            cached_tokens=counts[0].cached_tokens,
        )

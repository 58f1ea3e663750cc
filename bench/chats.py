"""What is asked: one chat of about 1 KB, streamed or not, with the upstream's hints in its text."""

from typing import Final

MODEL: Final = "bench-model"
_PROMPT: Final = "Say in one sentence what a gateway does between an application and a model, and what it must not do. "


def chat(*, events: int | None = None, pace_us: int = 0, burst: int = 1) -> dict[str, object]:
    """A chat; with `events` streamed, so many of them, `burst` in one write, `pace_us` microseconds between writes.

    The hints for `src/upstream.c` are words of a message: routers drop fields that they do not know.
    """
    hints = "" if events is None else f" bench_events:{events} bench_pace_us:{pace_us} bench_burst:{burst}"
    messages = [
        {"role": "system", "content": "You are a terse assistant." + hints},
        {"role": "user", "content": _PROMPT * 8},
    ]
    body: dict[str, object] = {"model": MODEL, "messages": messages, "temperature": 0.2, "max_tokens": events or 64}
    return body if events is None else body | {"stream": True}

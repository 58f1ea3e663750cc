"""Token counts where an engine reports none: a documented rule, and always marked as an estimate."""

from typing import Final

from gateway.relay.plan import Api, Usage, UsageSource, Work

_PROMPTS: Final = frozenset({"messages", "prompt", "input", "query", "documents"})
_WITHOUT_TOKENS: Final = frozenset({Api.TOKENIZE, Api.INFER})  # nothing is computed with them, or there are none
_BYTES_PER_TOKEN: Final = 4  # near the mean of English text in common tokenizers


def estimate_usage(work: Work, *, content_events: int | None, content_bytes: int) -> Usage:
    """Input: bytes of the prompt / 4. Output: content events of a stream, else bytes of the content / 4."""
    if work.api in _WITHOUT_TOKENS:
        return Usage()
    size = sum(span[3] - span[2] for name, span in work.parsed.spans.items() if name in _PROMPTS)
    return Usage(
        input_tokens=_tokens(size),
        output_tokens=_tokens(content_bytes) if content_events is None else content_events,
        source=UsageSource.ESTIMATED,
    )


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)

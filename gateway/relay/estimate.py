"""Token counts where an engine reports none: a documented rule, and always marked as an estimate."""

from typing import Final

from gateway.relay.plan import ParsedBody, Usage, UsageSource

_BYTES_PER_TOKEN: Final = 4  # near the mean of English text in common tokenizers


def estimate_usage(parsed: ParsedBody, *, content_events: int | None, content_bytes: int) -> Usage:
    """Input: bytes of the prompt / 4. Output: content events of a stream, else bytes of the content / 4."""
    _, _, start, end = parsed.spans.get("messages") or parsed.spans.get("prompt") or (0, 0, 0, 0)
    return Usage(
        input_tokens=_tokens(end - start),
        output_tokens=_tokens(content_bytes) if content_events is None else content_events,
        source=UsageSource.ESTIMATED,
    )


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)

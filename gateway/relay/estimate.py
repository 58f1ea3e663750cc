"""Token counts where an engine reports none: a documented rule, and always marked as an estimate."""

from math import ceil
from typing import Final

import msgspec

from core.errors import InvalidRequest
from gateway.relay.measure import measure
from gateway.relay.plan import Api, Usage, UsageSource, Work

UNSEEN_TOKENS_PER_SECOND: Final = 200
"""Of each answer: faster than engines commonly write one, so that what a limit counts is not too little."""

_PROMPTS: Final = frozenset({"messages", "prompt", "input", "query", "documents"})
_WITHOUT_TOKENS: Final = frozenset({Api.TOKENIZE, Api.INFER})  # nothing is computed with them, or there are none
_BYTES_PER_TOKEN: Final = 4  # near the mean of English text in common tokenizers


def estimate_usage(work: Work, *, content_events: int | None, content_bytes: int) -> Usage:
    """Input: bytes of the prompt / 4. Output: content events of a stream, else bytes of the content / 4."""
    if work.api in _WITHOUT_TOKENS:
        return Usage()
    return Usage(
        input_tokens=_input_tokens(work),
        output_tokens=_tokens(content_bytes) if content_events is None else content_events,
        source=UsageSource.ESTIMATED,
    )


def estimate_unseen(work: Work, seconds: float) -> tuple[Usage, int]:
    """Of a request that an engine has worked on for so long before its client left, with nothing told.

    The usage has the input alone: the output nobody counted. With it, how many tokens that may be at most.
    """
    usage = Usage()
    if work.api not in _WITHOUT_TOKENS:
        usage = Usage(input_tokens=_input_tokens(work), source=UsageSource.ESTIMATED)
    return usage, ceil(max(0.0, seconds) * UNSEEN_TOKENS_PER_SECOND * _answers(work))


def _answers(work: Work) -> int:
    """How many an engine writes at the same time."""
    try:
        size = measure(work)
    except (InvalidRequest, msgspec.DecodeError):  # without limits, nobody has looked before
        return work.parsed.n
    return size.prompts * size.answers


def _input_tokens(work: Work) -> int:
    return _tokens(sum(span[3] - span[2] for name, span in work.parsed.spans.items() if name in _PROMPTS))


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)

"""From a trace to what is sent and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.replay.trace import TraceRequest

# Short common words: about one token each for the tokenizers in use.
_TEXT: Final = (
    "the a of to in is it for on as at by we or an if so no do up time way day man new old all one two you "
    "they said what when who will more out them then into has her like him see how its over know most"
)
_WORDS: Final = tuple(_TEXT.split(" "))


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One chat to send."""

    number: int
    due_seconds: float  # after the start of the replay
    prompt: str
    max_tokens: int


def plan(
    trace: Sequence[TraceRequest], *, speed: float, max_tokens: int, max_prompt_tokens: int
) -> list[PlannedRequest]:
    """The recorded requests at `speed` times the recorded pace, token counts bounded.

    Raises ValueError unless all three are positive.
    """
    if speed <= 0 or max_tokens < 1 or max_prompt_tokens < 1:
        raise ValueError("speed, max_tokens and max_prompt_tokens must be positive")
    return [
        PlannedRequest(
            number=number,
            due_seconds=request.at_seconds / speed,
            prompt=prompt_of(number, min(max(request.context_tokens, 1), max_prompt_tokens)),
            max_tokens=min(max(request.generated_tokens, 1), max_tokens),
        )
        for number, request in enumerate(trace)
    ]


def prompt_of(number: int, tokens: int) -> str:
    """A text of about `tokens` tokens, the same for the same number, with a beginning of its own.

    A shared beginning would be answered from an engine's prefix cache, which the recorded ones were not.
    """
    count = len(_WORDS)
    step = number % (count - 1) + 1
    start = number // (count - 1)
    return " ".join(_WORDS[(start + place * step + place * place) % count] for place in range(tokens))

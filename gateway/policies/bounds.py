"""How many tokens a request can use at most, judged before anything is computed. Pure.

A tokenizer makes at most one token of a byte of text, and JSON never writes a text in fewer bytes than it has. What a
template adds is allowed for. The bound is no estimate: it is what is reserved, so that no limit is ever overspent; what
is not used is given back at the end.
"""

from typing import Final, NamedTuple

MESSAGE_TOKENS: Final = 16
"""What templates write around a message beyond what its JSON has around it."""

TOOLS_TOKENS: Final = 1024
"""What templates say to models about tools, besides the tools themselves."""

TOOLS_GROWTH: Final = 3
"""Templates write tools indented, or in words of their own: so many times their JSON on top of it."""

MEDIA_TOKENS: Final = 16_384
"""Of an image, a sound or another part whose bytes say nothing, where the model's context is unknown."""

COUNTED_TOKENS: Final = 16
"""By how much the engine's own count of a prompt may differ from what it then computes."""

_BYTES_PER_TOKEN: Final = 3  # fewer than common tokenizers make of nearly all text


class Context(NamedTuple):
    """Tokens of prompt and answer that the engines of a model hold. None: not known (of all of them)."""

    shortest: int | None = None
    longest: int | None = None


class Size(NamedTuple):
    """What of a request's body says how much it can use."""

    text_bytes: int
    prompts: int = 1  # at least one: texts that are answered, embedded or ranked each by itself
    messages: int = 0
    tools_bytes: int = 0
    media: int = 0  # parts whose bytes say nothing about their tokens
    answers: int = 0  # for each prompt; 0: nothing is written
    max_tokens: int | None = None  # of each answer; None: the client does not say, or says: no end
    counted: int | None = None  # tokens of the prompt, as an engine counted them


class TokenBound(NamedTuple):
    """At most so many tokens. `most_tokens`: the end that each answer is to have, said to every engine in a member that
    it knows; None: nothing is written."""

    input_tokens: int
    output_tokens: int
    most_tokens: int | None = None


def bound_tokens(size: Size, *, context: Context, allowance: int, default_max: int) -> TokenBound:
    """The bound of a request of this size.

    `allowance`: what a template may add to any prompt. `default_max`: the end of an answer that is given none.
    """
    text_bytes, prompts, messages, tools_bytes, media, answers, most, counted = size
    added = prompts * allowance + messages * MESSAGE_TOKENS
    if tools_bytes:
        added += TOOLS_TOKENS + TOOLS_GROWTH * tools_bytes
    input_tokens = text_bytes + added
    if counted is not None:
        input_tokens = counted + COUNTED_TOKENS
    elif media:
        input_tokens = prompts * context.longest if context.longest else input_tokens + media * MEDIA_TOKENS
    if context.longest is not None:
        input_tokens = min(input_tokens, prompts * context.longest)
    if answers <= 0:
        return TokenBound(input_tokens, 0)
    likely = input_tokens if counted is not None else text_bytes // _BYTES_PER_TOKEN + added
    if most is None:
        most = default_max if context.shortest is None else min(default_max, _room(context.shortest, likely))
    elif context.longest is not None and most > context.longest:
        most = _room(context.longest, likely)
    # An answer that may have no token has one all the same: engines decode it with the prompt.
    return TokenBound(input_tokens, prompts * answers * (most or 1), most)


def recounted(size: Size, tokens: int) -> Size:
    """The size, once an engine has counted the prompt."""
    return size._replace(counted=tokens)


def _room(context: int, likely_input: int) -> int:
    """What a context leaves for an answer; engines refuse a request for more. At least something for any prompt."""
    return max(context - likely_input, context // 8, 1)

"""What PostgreSQL can hold of what JSON and YAML can say."""

import math
from collections.abc import Mapping
from typing import Any, Final

_DEEPEST: Final = 50


def can_be_stored(text: str) -> bool:
    """Whether it is text without NUL and without halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def why_unfit(value: Any) -> str | None:
    """Why `value` cannot be kept, in a sentence about "it"; names of members are looked at, too. None: it can be."""
    parts: list[tuple[Any, int]] = [(value, 1)]
    while parts:
        part, depth = parts.pop()
        if isinstance(part, str) and not can_be_stored(part):
            return "It has a character that is no text: half of a surrogate pair, or NUL."
        if isinstance(part, float) and not math.isfinite(part):
            return "It has a number that is larger than any that can be kept."
        if isinstance(part, (Mapping, list)) and depth > _DEEPEST:
            return f"It is nested more than {_DEEPEST} deep."
        if isinstance(part, Mapping):
            parts += [(inner, depth + 1) for pair in part.items() for inner in pair]
        elif isinstance(part, list):
            parts += [(inner, depth + 1) for inner in part]
    return None

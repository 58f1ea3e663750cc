"""How large what another machine says may be, and what it may be made of. Each raises BadMessage."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from gpupool.stream.messages import BadMessage

LARGEST_BIGINT: Final = (1 << 63) - 1
LARGEST_INT: Final = (1 << 31) - 1
LATEST_SECOND: Final = 253_402_300_799.0  # the end of the year 9999
_MOST_FACTS: Final = 100


def check_text(name: str, value: str, longest: int, *, may_be_empty: bool = True) -> None:
    """PostgreSQL takes no NUL in a text."""
    if len(value) > longest or "\x00" in value or (not value and not may_be_empty):
        raise BadMessage(f"{name} is not a text of at most {longest} characters")


def check_number(name: str, value: int | None, largest: int, *, least: int = 0) -> None:
    if value is not None and not least <= value <= largest:
        raise BadMessage(f"{name} is not between {least} and {largest}")


def check_real(name: str, value: float | None, *, least: float = -math.inf, largest: float = math.inf) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= largest):
        raise BadMessage(f"{name} is not a finite number between {least:g} and {largest:g}")


def check_moment(name: str, value: float | None) -> None:
    """Seconds since the epoch."""
    if value is not None and not 0 <= value <= LATEST_SECOND:
        raise BadMessage(f"{name} is no time")


def check_count(name: str, values: Collection[object], most: int) -> None:
    if len(values) > most:
        raise BadMessage(f"there are at most {most} {name}")


def check_facts(facts: Mapping[str, str], *, most: int = _MOST_FACTS, longest: int = 2000) -> None:
    check_count("facts", facts, most)
    for key, value in facts.items():
        check_text("fact", key, 100)
        check_text("fact", value, longest)


def check_json(name: str, value: Any, *, depth: int, most: int, longest: int) -> int:
    """Any JSON value: nested at most `depth` times, of at most `most` values, texts of at most `longest` characters.

    Returns how many values it has.
    """
    if isinstance(value, str):
        check_text(name, value, longest)
    elif isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int):
        check_number(name, value, LARGEST_BIGINT, least=-LARGEST_BIGINT)
    elif isinstance(value, float):
        check_real(name, value)
    elif isinstance(value, Mapping):
        for key in value:
            check_text(name, key, longest)
        return _check_parts(name, tuple(value.values()), depth=depth, most=most, longest=longest)
    elif isinstance(value, list | tuple):
        return _check_parts(name, value, depth=depth, most=most, longest=longest)
    else:
        raise BadMessage(f"{name} holds what is no JSON")
    return 1


def _check_parts(name: str, parts: Collection[Any], *, depth: int, most: int, longest: int) -> int:
    if depth < 1 or len(parts) > most:
        raise BadMessage(f"{name} is nested too deep, or has too many members")
    count = 1
    for part in parts:
        count += check_json(name, part, depth=depth - 1, most=most - count, longest=longest)
        if count > most:
            raise BadMessage(f"{name} has too many members")
    return count

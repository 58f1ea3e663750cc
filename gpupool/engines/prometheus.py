"""Reading a few gauges out of Prometheus text, tolerant of everything else in it."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

_AFTER_NAME: Final = r"(?:\{[^\n]*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$"  # labels, value, time
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(name)}{_AFTER_NAME}", re.MULTILINE)


def samples(text: str, name: str) -> Iterator[float]:
    """Values of every series called `name`, whatever its labels; NaN, infinities and broken lines are left out."""
    for match in _pattern(name).finditer(text):
        try:
            value = float(match[1])
        except ValueError:
            continue
        if math.isfinite(value):
            yield value


def labels(text: str, name: str) -> Iterator[Mapping[str, str]]:
    """Labels of every series called `name`: of an `..._info` gauge they are all that it says."""
    for match in re.finditer(rf"^{re.escape(name)}\{{([^\n]*)\}}[ \t]", text, re.MULTILINE):
        yield {label: value.replace('\\"', '"') for label, value in _LABEL.findall(match[1])}


def gauge_sum(text: str, *names: str) -> float | None:
    """The sum over the series of the first of `names` that occurs; None when none does."""
    for name in names:
        found = list(samples(text, name))
        if found:
            return sum(found)
    return None


def gauge_max(text: str, *names: str) -> float | None:
    """The largest over the series of the first of `names` that occurs; None when none does."""
    for name in names:
        found = list(samples(text, name))
        if found:
            return max(found)
    return None


def count(value: float | None) -> int | None:
    """A gauge of things as a whole number; None for unknown and for a negative one, which means nothing."""
    return None if value is None or value < 0 else round(value)


def share(value: float | None) -> float | None:
    """A gauge between 0 and 1; None for unknown and outside values (no clamping: they would be another unit)."""
    return None if value is None or not 0 <= value <= 1 else value

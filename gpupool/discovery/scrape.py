"""Series of a Prometheus exporter, with their labels."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

_SERIES: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^\n]*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def series(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """(name, labels, value) of every series; NaN, infinities and broken lines are left out."""
    for name, labels, written in _SERIES.findall(text):
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value):
            yield name, dict(_LABEL.findall(labels)), value

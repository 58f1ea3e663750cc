"""Figures in what an engine logs."""

import re
from typing import Final

_GIB: Final = 1 << 30


def gib_bytes(pattern: re.Pattern[str], log: str) -> int | None:
    """Bytes of the first match, whose group is a number of GiB; None where the log has none."""
    match = pattern.search(log)
    return None if match is None else round(float(match[1]) * _GIB)

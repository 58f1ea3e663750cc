"""Reading what command line tools print: text before JSON, colours, numbers with units, words for "not known".

What cannot be read is None, never 0.
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>])")
_MOST_STARTS: Final = 200
_NUMBER: Final = re.compile(r"^[<>~]?\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(.*)$", re.DOTALL)
_HEX: Final = re.compile(r"^0x([0-9a-fA-F]+)$")
_DIGITS: Final = re.compile(r"^[0-9]{1,20}$")
_LARGEST: Final = (1 << 64) - 1  # the largest that a driver writes; it means "not available" then, or is nonsense
_MOST_NUMA_NODES: Final = 1 << 16
_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)

# Tools of all vendors write MB and mean 2**20: the sum of what they print is only then the size of the card.
_BYTES: Final[Mapping[str, int]] = {
    "b": 1, "byte": 1, "bytes": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20,
    "mib": 1 << 20, "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}  # fmt: skip


def plain(text: str) -> str:
    """Without the codes that colour a terminal, and with line ends of one kind."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\0", "")


@functools.lru_cache(maxsize=8)
def json_in(text: str) -> object:
    """The largest JSON object or array in what a tool printed, whatever stands around it; None where there is none.

    The same text is asked about each second until the tool prints another. What is returned is not to be changed.
    """
    clean = plain(text)
    decoder = json.JSONDecoder()
    best: object = None
    longest = 0
    position = 0
    for _ in range(_MOST_STARTS):
        start = _next_start(clean, position)
        if start < 0 or len(clean) - start <= longest:
            break
        try:
            value, end = decoder.raw_decode(clean, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        if end - start > longest:
            best, longest = value, end - start
        position = end
    return best


def _next_start(text: str, position: int) -> int:
    found = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
    return min(found, default=-1)


def number(value: object) -> float | None:
    """A number, out of 45, "45", "45 W", "45%", {"value": 45, "unit": "W"} or "0x2d"."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _finite(value)
    if isinstance(value, Mapping):
        return number(value.get("value"))
    if not isinstance(value, str):
        return None
    text = value.strip()
    if (hexadecimal := _HEX.match(text)) is not None:
        return _finite(int(hexadecimal[1], 16))
    match = _NUMBER.match(text)
    return None if match is None else _finite(float(match[1]))


def whole(value: object) -> int | None:
    """The same, where only a whole number makes sense."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _LARGEST else None
    if isinstance(value, str) and _DIGITS.match(value.strip()):
        return whole(int(value))  # beyond what a float holds exactly
    parsed = number(value)
    return None if parsed is None or abs(parsed) > _LARGEST else int(parsed)


def numa_node(value: object) -> int | None:
    """The number of a NUMA node; None where the firmware does not say, which is -1, or 4294967295 where a tool prints
    it without its sign."""
    node = whole(value)
    return node if node is not None and 0 <= node < _MOST_NUMA_NODES else None


def _finite(value: float) -> float | None:
    try:
        parsed = float(value)
    except OverflowError:  # of more digits than any number of a machine has
        return None
    return parsed if math.isfinite(parsed) else None


def size_bytes(value: object, unit: str = "b") -> int | None:
    """Bytes, out of "16368 MB", {"value": 65520, "unit": "MB"}, or a bare number of `unit`."""
    if isinstance(value, Mapping):
        named = value.get("unit")
        return size_bytes(value.get("value"), named if isinstance(named, str) and named else unit)
    if isinstance(value, str) and (match := _NUMBER.match(value.strip())) is not None and match[2]:
        factor = _BYTES.get(match[2].split()[0].lower())
        return None if factor is None else whole(float(match[1]) * factor)
    factor = _BYTES.get(unit.lower())
    if factor is None:
        return None
    if factor == 1:
        return whole(value)
    parsed = number(value)
    return None if parsed is None else whole(parsed * factor)


def share(percent: object) -> float | None:
    """0 to 1, out of a percentage; None beyond it."""
    parsed = number(percent)
    return None if parsed is None or not 0 <= parsed <= 100 else parsed / 100


def words(value: object) -> str:
    """Text that says something; empty for N/A, [Not Supported], None and their like."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value).strip()
    bare = text.strip("[]()<>").lower()
    return "" if bare in ("", "n/a", "na", "none", "null", "not supported", "unknown", "unknown error", "-") else text


def pci_address(value: object) -> str:
    """As the kernel writes it, 0000:17:00.0; empty where there is none in it."""
    match = _ADDRESS.search(value) if isinstance(value, str) else None
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{(domain or '').lstrip('0').rjust(4, '0')}:{bus}:{device}.{function or '0'}".lower()


def mappings(value: object) -> Iterator[Mapping[str, object]]:
    """The objects in an array, or the one object."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                yield item


def at(value: object, *path: str) -> object:
    """What stands at a path of names; None where anything on the way is missing or of another kind."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value

"""The shapes that kernel messages come in: /dev/kmsg, dmesg with and without times in words, the journal."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import msgspec

from gpupool.discovery.tolerant import number, plain

_KMSG: Final = re.compile(r"^(\d+),(\d+),(\d+),[^;]*;(.*)$", re.DOTALL)
_ISO_TIME: Final = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
_DECODED: Final = re.compile(r"^(?:\w+\s*:\s*(\w+)\s*:\s+)?" + _ISO_TIME + r"\s+(.*)$", re.DOTALL)
_DECODED_MONOTONIC: Final = re.compile(r"^\w+\s*:\s*(\w+)\s*:\s+(\[.*)$", re.DOTALL)
_MONOTONIC: Final = re.compile(r"^(?:.*?\s)?(?:<(\d+)>)?\[\s*(\d+\.\d{3,})\]\s?(.*)$", re.DOTALL)
_IN_WORDS: Final = re.compile(r"^(?:<(\d+)>)?\[(\w{3} \w{3}\s+\d+ \d\d:\d\d:\d\d \d{4})\]\s?(.*)$", re.DOTALL)
_SYSLOG: Final = re.compile(r"^(\w{3}\s+\d+ \d\d:\d\d:\d\d) \S+ (.*)$", re.DOTALL)
_TAG: Final = re.compile(r"^(?:\S+ )?kernel(?:\[\d+\])?: ", re.DOTALL)
_LEVELS: Final = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message; what its shape does not tell is None."""

    text: str
    level: int | None = None  # 0 is an emergency, 7 is for debugging
    sequence: int | None = None  # of the kernel's own ring
    monotonic_seconds: float | None = None  # since the boot
    wall_seconds: float | None = None  # since the epoch


def parse_line(line: str, *, now: float, zone: tzinfo = UTC) -> LogLine:
    """Any of the shapes. `now` gives the year to times without one, `zone` is that of times without one."""
    line = plain(line).strip("\n")
    if (match := _KMSG.match(line)) is not None:
        prefix, sequence, microseconds, text = match.groups()
        return LogLine(_unescaped(text.partition("\n")[0]), int(prefix) & 7, int(sequence), int(microseconds) / 1e6)
    if line.startswith("{") and (journal := _journal(line)) is not None:
        return journal
    if (match := _IN_WORDS.match(line)) is not None:
        level, when, text = match.groups()
        return LogLine(text, _level(level), wall_seconds=_time(when, "%a %b %d %H:%M:%S %Y", zone))
    if (match := _DECODED.match(line)) is not None:
        level, when, text = match.groups()
        return LogLine(_TAG.sub("", text, count=1), _level(level), wall_seconds=_iso(when, zone))
    if (match := _SYSLOG.match(line)) is not None:
        when, text = match.groups()
        inner = _monotonic(_TAG.sub("", text, count=1))
        return LogLine(inner.text, inner.level, None, inner.monotonic_seconds, _without_year(when, now, zone))
    if (match := _DECODED_MONOTONIC.match(line)) is not None:
        inner = _monotonic(match[2])
        return LogLine(inner.text, _level(match[1]), None, inner.monotonic_seconds)
    return _monotonic(line)


def _monotonic(line: str) -> LogLine:
    match = _MONOTONIC.match(line)
    if match is None:
        return LogLine(line)
    level, seconds, text = match.groups()
    return LogLine(text, _level(level), monotonic_seconds=float(seconds))


def _journal(line: str) -> LogLine | None:
    try:
        entry = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
    text = entry.get("MESSAGE")
    if not isinstance(text, str):
        return None
    wall, monotonic = number(entry.get("__REALTIME_TIMESTAMP")), number(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    level = entry.get("PRIORITY")
    return LogLine(
        text,
        _level(level if isinstance(level, str) else None),
        None,
        None if monotonic is None else monotonic / 1e6,
        None if wall is None else wall / 1e6,
    )


def _level(word: str | None) -> int | None:
    if word is None:
        return None
    if word.isdigit():
        return int(word) & 7
    return _LEVELS.index(word) if word in _LEVELS else None


def _time(text: str, shape: str, zone: tzinfo) -> float | None:
    try:
        return datetime.strptime(" ".join(text.split()), shape).replace(tzinfo=zone).timestamp()
    except ValueError:
        return None


def _iso(text: str, zone: tzinfo) -> float | None:
    try:
        when = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    return (when if when.tzinfo is not None else when.replace(tzinfo=zone)).timestamp()


def _without_year(text: str, now: float, zone: tzinfo) -> float | None:
    """A time of the last twelve months."""
    today = datetime.fromtimestamp(now, zone)
    for year in (today.year, today.year - 1):
        when = _time(f"{text} {year}", "%b %d %H:%M:%S %Y", zone)
        if when is not None and when <= (today + timedelta(days=1)).timestamp():
            return when
    return None


def _unescaped(text: str) -> str:
    """/dev/kmsg writes bytes that are not printable as \\x0a."""
    return re.sub(r"\\x([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text)

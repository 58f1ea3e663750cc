"""Tells the web process the end of the logs that somebody reads now."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from core.clock import Clock
from gpupool.policies.log_text import last_lines
from gpupool.stream.messages import LogFact

MOST_AT_ONCE: Final = 4
"""In one report; where more are read, they take turns."""

_READ_BYTES: Final = 128 * 1024
_AGAIN_SECONDS: Final = 10.0
"""A report may be lost: what is read is told again after so long, changed or not."""


@dataclass(slots=True)
class _Told:
    mark: tuple[int, int] = (-1, -1)  # size, time of the last write
    at: float = float("-inf")


@dataclass(slots=True)
class LogTails:
    """`folder` holds engine-ID.log of each engine."""

    folder: Path
    clock: Clock
    _wanted: dict[UUID, _Told] = field(default_factory=dict)

    def set_wanted(self, instance_ids: Iterable[UUID]) -> bool:
        """Whose logs are read now; says whether one of them is new."""
        before, self._wanted = self._wanted, {}
        for instance_id in instance_ids:
            self._wanted[instance_id] = before.get(instance_id) or _Told()
        return bool(self._wanted.keys() - before.keys())

    def to_tell(self) -> list[LogFact]:
        """Those that changed since they were told, the one that waited longest first."""
        now = self.clock.monotonic()
        facts: list[LogFact] = []
        for instance_id, told in sorted(self._wanted.items(), key=lambda item: item[1].at):
            if len(facts) >= MOST_AT_ONCE:
                break
            path = self.folder / f"engine-{instance_id}.log"
            mark = _mark(path)
            if mark == told.mark and now - told.at < _AGAIN_SECONDS:
                continue
            told.mark, told.at = mark, now
            facts.append(_read(instance_id, path))
        return facts


def _mark(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def _read(instance_id: UUID, path: Path) -> LogFact:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(0, size - _READ_BYTES)
            file.seek(begin)
            text = file.read(_READ_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return LogFact(instance_id=instance_id, text="")
    if begin:
        text = text.partition("\n")[2]  # the first line is part of one
    tail = last_lines(text, cut=bool(begin))
    return LogFact(instance_id=instance_id, text=tail.text, cut=tail.cut)

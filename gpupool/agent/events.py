"""What the agent noticed, numbered, kept on disk and told again until the web process has said that it keeps it."""

import contextlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from gpupool.agent.facts import clean
from gpupool.agent.state import read_file, replace_file
from gpupool.discovery.base import Noticed
from gpupool.stream.messages import EventFact

log = structlog.get_logger(__name__)

MOST_KEPT: Final = 2000
MOST_TOLD: Final = 200
"""In one report. Fewer than the web process takes at once."""
RETELL_SECONDS: Final = 2.0
_MOST_CHARACTERS: Final = 60_000  # in one report
_MOST_DATA: Final = 20
_LONGEST_VALUE: Final = 500
_LATEST_SECOND: Final = 253_402_300_799.0  # the end of the year 9999
_LARGEST_CODE: Final = (1 << 31) - 1
DROPPED: Final = "dropped"


class _Kept(msgspec.Struct, kw_only=True):
    boot_id: str
    last: int = 0
    events: list[EventFact] = []


class EventBuffer:
    """Events of one node and boot, the oldest first.

    Numbers go on where an earlier agent of this boot left off. Nothing is told before the web process has said once
    up to where it keeps them: an agent that lost its folder would give other events the same numbers.
    """

    def __init__(self, path: Path, *, boot_id: str, most: int = MOST_KEPT) -> None:
        """`path` is the file that holds them between two agents."""
        self._path = path
        self._boot_id = boot_id
        self._most = most
        self._last = 0
        self._events: deque[EventFact] = deque()
        self._unsaved = False
        self._agreed = False
        self._told: tuple[int, float] | None = None  # the newest that was told, and when

    def load(self) -> None:
        """Take up what an earlier agent left; what is of an earlier boot gets new numbers, and says so."""
        kept = read_file(self._path, _Kept)
        if kept is None:
            return
        if kept.boot_id == self._boot_id:
            self._last, self._events = kept.last, deque(kept.events)
            return
        for event in kept.events:
            self._last += 1
            data = {**event.data, "boot_id": event.data.get("boot_id", kept.boot_id)}
            self._events.append(replace(event, sequence=self._last, data=data))
        self._unsaved = bool(kept.events)

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._last

    def __len__(self) -> int:
        return len(self._events)

    def add(self, noticed: Iterable[Noticed]) -> bool:
        """Number and keep them; says whether there were any."""
        before = self._last
        for one in noticed:
            self._last += 1
            self._events.append(_fact(self._last, one))
        while len(self._events) > self._most:
            self._drop_oldest()
        self._unsaved |= self._last != before
        return self._last != before

    def to_tell(self, *, now: float) -> list[EventFact]:
        """The oldest that the web process does not keep yet. They are on disk before anybody hears of them.

        Always from the oldest on: whatever frame gets lost, no later one is kept without it. Not again with every
        report, but when there are more, and every RETELL_SECONDS. `now` is in monotonic seconds.
        """
        if not self._agreed or not self._events:
            return []
        told = self._oldest()
        newest = told[-1].sequence
        if self._told is not None and newest <= self._told[0] and now - self._told[1] < RETELL_SECONDS:
            return []
        self._save()
        self._told = (newest, now)
        return told

    def _oldest(self) -> list[EventFact]:
        """As many as a report has room for, and one at least."""
        told: list[EventFact] = []
        room = _MOST_CHARACTERS
        for event in self._events:
            room -= len(event.text) + sum(len(key) + len(value) for key, value in event.data.items())
            if told and (room < 0 or len(told) == MOST_TOLD):
                break
            told.append(event)
        return told

    def retell(self) -> None:
        """A stream begins: what was told on the last one may never have come."""
        self._told = None

    def acknowledge(self, sequence: int) -> bool:
        """The web process keeps all up to `sequence`. Says whether there is more to tell."""
        self._agreed = True
        if sequence > self._last:
            # It knows events of this boot that this agent does not: its folder was lost. Numbers go on from there.
            self._last, self._told = sequence, None
            for _ in range(len(self._events)):
                self._last += 1
                self._events.append(replace(self._events.popleft(), sequence=self._last))
            self._unsaved = True
        while self._events and self._events[0].sequence <= sequence:
            self._events.popleft()
            self._unsaved = True
        self._save()
        return bool(self._events)

    def _drop_oldest(self) -> None:
        """Two of them become one that says how many were dropped, so that the gap is seen."""
        first, second = self._events.popleft(), self._events.popleft()
        count = int(first.data.get("count", "1")) if first.kind == DROPPED else 1
        count += 1
        self._events.appendleft(
            EventFact(
                sequence=second.sequence,
                source="agent",
                kind=DROPPED,
                at=first.at,
                text=f"{count} events from then on were not kept: the web process was away for too long.",
                data={"count": str(count)},
            )
        )

    def _save(self) -> None:
        if not self._unsaved:
            return
        kept = _Kept(boot_id=self._boot_id, last=self._last, events=list(self._events))
        with contextlib.suppress(OSError):  # a full disk must not silence what goes wrong: it is told unsaved
            replace_file(self._path, msgspec.json.encode(kept))
            self._unsaved = False


def _fact(sequence: int, noticed: Noticed) -> EventFact:
    """Cut to what the web process takes."""
    data = {clean(key)[:100]: clean(value)[:_LONGEST_VALUE] for key, value in list(noticed.data.items())[:_MOST_DATA]}
    if noticed.pci_address:
        data.setdefault("pci_address", clean(noticed.pci_address)[:100])
    code = noticed.code
    if code is not None and abs(code) > _LARGEST_CODE:
        code = None
    return EventFact(
        sequence=sequence,
        source=noticed.source[:16] or "agent",
        kind=noticed.kind[:24] or "change",
        at=min(max(0.0, noticed.at), _LATEST_SECOND),
        stable_id=clean(noticed.stable_id)[:200],
        code=code,
        text=clean(noticed.text)[:2000],
        data=data,
    )

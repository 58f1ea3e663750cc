"""What a node agent does about the rows it was told and the engines it runs. Pure.

The agent is the sole arbiter of its devices, and cautious with what runs: an engine is stopped only on a
`stopped` row, or on a higher fencing token that takes its lease away. Silence stops nothing: neither a
lost connection nor a row that is missing. Starting is the opposite: only while the web process speaks.
So are sleep and waking. What changes the memory of a device, a start, a waking or a falling asleep, does so alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

FIRST_RESTART_DELAY_SECONDS: Final = 0.5
LONGEST_RESTART_DELAY_SECONDS: Final = 60.0
CRASH_LOOP_FAILURES: Final = 5
"""Starts in a row that came to nothing, after which an instance is reported as failed. It is still retried."""


class Phase(StrEnum):
    """Where one engine stands, in the words of InstanceFact.state."""

    STAGING = "staging"  # no process yet, or waiting to be restarted
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    UNKNOWN = "unknown"  # its process is there and does not answer: no requests until it does
    ASLEEP = "asleep"  # its devices' memory is given back; without a process, its weights are in the page cache
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


P = Phase
_ENDS: Final = frozenset({P.STAGING, P.FAILED, P.DRAINING, P.STOPPED})
"""What any engine with a process can come to."""

ALLOWED: Final[Mapping[Phase, frozenset[Phase]]] = {
    P.STAGING: frozenset({P.LOADING, P.ASLEEP, P.FAILED, P.STOPPED}),
    P.LOADING: _ENDS | {P.WARMING},
    P.WARMING: _ENDS | {P.READY},
    P.READY: _ENDS | {P.UNKNOWN, P.LOADING, P.ASLEEP},
    P.UNKNOWN: _ENDS | {P.READY, P.LOADING, P.ASLEEP},
    P.ASLEEP: _ENDS | {P.WARMING},
    P.DRAINING: frozenset({P.STOPPED}),
    P.STOPPED: frozenset({P.STAGING, P.ASLEEP}),
    P.FAILED: frozenset({P.STAGING, P.LOADING, P.ASLEEP, P.STOPPED}),
}
SERVING: Final = frozenset({Phase.READY, Phase.UNKNOWN})
"""It has come to serve, whether or not it answers now."""

STARTING: Final = frozenset({Phase.STAGING, Phase.LOADING, Phase.WARMING})


@dataclass(frozen=True, slots=True)
class Wish:
    """One desired row, as far as it matters here."""

    instance_id: UUID
    running: bool
    fencing_token: int
    device_ids: frozenset[str]
    drain_seconds: float = 0.0
    whole_device: bool = False
    """The claim is the whole of its device, so that a later claim on it means this one has ended."""
    asleep: bool = False
    """Where it is not to run: whether its weights are to be kept at hand, and its process where it can sleep."""
    barred: str = ""
    """Why it may be neither started nor woken, in a sentence; see policies.tenant_switch."""


@dataclass(frozen=True, slots=True)
class Known:
    """One engine that the agent has a record of."""

    instance_id: UUID
    fencing_token: int
    device_ids: frozenset[str]
    phase: Phase
    alive: bool  # its process exists
    start_after: float | None = 0.0
    """Monotonic seconds before which it is not started again; None: not until its row changes."""
    idle: bool = False
    """It serves, is to sleep, and has had no request since it was told so."""
    settling: bool = False
    """It falls asleep at this moment: its devices' memory changes."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start it, or start it again. A known process of the same instance is gone by then."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process: let running requests finish for `drain_seconds`, then make it stop.

    One that has no process now, because it waits to be started again, just becomes stopped.
    """

    instance_id: UUID
    drain_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let it give the memory of its devices back; it has no requests."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Wake:
    """Let it take that memory again, and serve."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Stage:
    """It has no process and shall sleep: keep its weights in the page cache, for a quick start."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the record: nothing runs and nobody asks for it."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do not act on this row, which an earlier one has overtaken."""

    instance_id: UUID
    reason: str


Action = Start | Stop | Sleep | Wake | Stage | Forget | Ignore


def decide(
    wishes: Iterable[Wish] | None,
    known: Iterable[Known],
    *,
    connected: bool,
    now: float,
    fences: Mapping[str, int],
) -> list[Action]:
    """What to do now; stops come first, then what is forgotten, then sleep, then starts and wakings by fencing token.

    `wishes` is None until a first desired state was read. `fences` is the highest fencing token ever seen
    per device. At most one engine per device is in its start at any time, because engines measure free
    memory while they load.
    """
    if wishes is None:
        return []
    wished = {wish.instance_id: wish for wish in wishes}
    records = {record.instance_id: record for record in known}
    actions: list[Action] = []
    fenced: set[UUID] = set()
    for record in records.values():
        reason = _fenced_off(record, wished)
        if reason is not None:
            fenced.add(record.instance_id)
            if record.alive and record.phase is not Phase.DRAINING:
                actions.append(Stop(record.instance_id, 0.0, reason))
            continue
        wish = wished.get(record.instance_id)
        ends = wish is not None and not wish.running and not wish.asleep
        asked = wish is not None and ends and wish.fencing_token >= record.fencing_token
        if wish is not None and asked and record.phase not in (Phase.DRAINING, Phase.STOPPED):
            actions.append(Stop(record.instance_id, wish.drain_seconds, "It was asked to stop."))
    actions += [Forget(r.instance_id) for r in records.values() if not r.alive and r.instance_id not in wished]
    changing = (r for r in records.values() if r.alive and (r.phase in STARTING or r.instance_id in fenced))
    busy = {device for record in changing for device in record.device_ids}
    busy |= {device for r in records.values() if r.alive and r.settling for device in r.device_ids}
    by_token = sorted(wished.values(), key=lambda w: (w.fencing_token, w.instance_id))
    if connected:
        actions += _rests(by_token, records, fenced, busy)
    for wish in by_token:
        if not wish.running:
            continue
        record_or_none = records.get(wish.instance_id)
        stale = _overtaken(wish, record_or_none, fences)
        if stale is not None:
            actions.append(Ignore(wish.instance_id, stale))
            continue
        up = record_or_none is not None and record_or_none.alive
        if record_or_none is not None and up and record_or_none.phase is not Phase.ASLEEP:
            continue
        if wish.barred:
            actions.append(Ignore(wish.instance_id, wish.barred))
            continue
        if not connected or busy & wish.device_ids or not (up or _due(wish, record_or_none, now)):
            continue
        busy |= wish.device_ids
        actions.append(Wake(wish.instance_id) if up else Start(wish.instance_id))
    return actions


def _rests(
    wishes: Iterable[Wish], records: Mapping[UUID, Known], fenced: Collection[UUID], busy: set[str]
) -> Iterator[Action]:
    """What shall sleep: with a process, once nothing else changes the memory of its devices. Adds to `busy`."""
    for wish in wishes:
        if not wish.asleep or wish.instance_id in fenced:
            continue
        record = records.get(wish.instance_id)
        if record is not None and wish.fencing_token < record.fencing_token:
            continue
        if record is None or not record.alive:
            if record is None or record.phase not in (Phase.ASLEEP, Phase.DRAINING):
                yield Stage(wish.instance_id)
        elif record.phase is Phase.READY and record.idle and not record.settling and not busy & record.device_ids:
            busy |= record.device_ids
            yield Sleep(wish.instance_id)


def next_due(wishes: Iterable[Wish] | None, known: Iterable[Known], *, now: float) -> float | None:
    """Monotonic seconds when a back-off ends next; None when there is none to wait for."""
    running = {wish.instance_id for wish in wishes or () if wish.running}
    times = [
        record.start_after
        for record in known
        if record.instance_id in running
        and not record.alive
        and record.start_after is not None
        and record.start_after > now
    ]
    return min(times, default=None)


def restart_delay_seconds(failures: int) -> float:
    """Wait before the next start after `failures` starts in a row came to nothing; doubles up to a minute.

    Raises ValueError when there was no failure.
    """
    if failures < 1:
        raise ValueError("there is nothing to wait for before a first start")
    return min(LONGEST_RESTART_DELAY_SECONDS, FIRST_RESTART_DELAY_SECONDS * 2.0 ** min(failures - 1, 16))


def _fenced_off(record: Known, wished: Mapping[UUID, Wish]) -> str | None:
    """Why the record's lease is over, when it is. A token is compared only with newer claims, never with silence."""
    own = wished.get(record.instance_id)
    if own is not None:
        if own.fencing_token > record.fencing_token:
            return f"Its lease {record.fencing_token} was replaced by {own.fencing_token}."
        return None
    for wish in wished.values():
        if wish.running and wish.fencing_token > record.fencing_token and wish.device_ids & record.device_ids:
            return f"Its device was given away: lease {record.fencing_token} is older than {wish.fencing_token}."
    return None


def _overtaken(wish: Wish, record: Known | None, fences: Mapping[str, int]) -> str | None:
    if record is not None and wish.fencing_token < record.fencing_token:
        return f"Fencing token {wish.fencing_token} is older than {record.fencing_token}, which runs here."
    if wish.whole_device and (record is None or record.fencing_token != wish.fencing_token):
        for device in sorted(wish.device_ids):
            if wish.fencing_token < fences.get(device, wish.fencing_token):
                return f"Fencing token {wish.fencing_token} is older than {fences[device]}, seen on {device}."
    return None


def _due(wish: Wish, record: Known | None, now: float) -> bool:
    if record is None or wish.fencing_token > record.fencing_token or record.phase is Phase.STOPPED:
        return True
    return record.start_after is not None and record.start_after <= now

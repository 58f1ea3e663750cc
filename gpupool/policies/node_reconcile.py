"""What a node agent does about the rows it was told and the engines it runs. Pure.

The agent is the sole arbiter of its devices, and cautious with what runs: an engine is stopped only on a
`stopped` row, or on a higher fencing token that takes its lease away. Silence stops nothing: neither a
lost connection nor a row that is missing. Starting is the opposite: only while the web process speaks.
"""

from collections.abc import Iterable, Mapping
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
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


ALLOWED: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.STAGING: frozenset({Phase.LOADING, Phase.FAILED, Phase.STOPPED}),
    Phase.LOADING: frozenset({Phase.WARMING, Phase.STAGING, Phase.FAILED, Phase.DRAINING, Phase.STOPPED}),
    Phase.WARMING: frozenset({Phase.READY, Phase.STAGING, Phase.FAILED, Phase.DRAINING, Phase.STOPPED}),
    Phase.READY: frozenset({Phase.UNKNOWN, Phase.STAGING, Phase.LOADING, Phase.FAILED, Phase.DRAINING, Phase.STOPPED}),
    Phase.UNKNOWN: frozenset({Phase.READY, Phase.STAGING, Phase.LOADING, Phase.FAILED, Phase.DRAINING, Phase.STOPPED}),
    Phase.DRAINING: frozenset({Phase.STOPPED}),
    Phase.STOPPED: frozenset({Phase.STAGING}),
    Phase.FAILED: frozenset({Phase.STAGING, Phase.LOADING, Phase.STOPPED}),
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
class Forget:
    """Drop the record: nothing runs and nobody asks for it."""

    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do not act on this row, which an earlier one has overtaken."""

    instance_id: UUID
    reason: str


Action = Start | Stop | Forget | Ignore


def decide(
    wishes: Iterable[Wish] | None,
    known: Iterable[Known],
    *,
    connected: bool,
    now: float,
    fences: Mapping[str, int],
) -> list[Action]:
    """What to do now; stops come first, then what is forgotten, then starts by fencing token.

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
        asked = wish is not None and not wish.running and wish.fencing_token >= record.fencing_token
        if wish is not None and asked and record.phase not in (Phase.DRAINING, Phase.STOPPED):
            actions.append(Stop(record.instance_id, wish.drain_seconds, "It was asked to stop."))
    actions += [Forget(r.instance_id) for r in records.values() if not r.alive and r.instance_id not in wished]
    busy = {device for r in records.values() if r.alive and r.phase in STARTING for device in r.device_ids}
    busy |= {device for r in records.values() if r.alive and r.instance_id in fenced for device in r.device_ids}
    for wish in sorted(wished.values(), key=lambda w: (w.fencing_token, w.instance_id)):
        if not wish.running:
            continue
        record_or_none = records.get(wish.instance_id)
        stale = _overtaken(wish, record_or_none, fences)
        if stale is not None:
            actions.append(Ignore(wish.instance_id, stale))
            continue
        if record_or_none is not None and record_or_none.alive:
            continue
        if not connected or busy & wish.device_ids or not _due(wish, record_or_none, now):
            continue
        busy |= wish.device_ids
        actions.append(Start(wish.instance_id))
    return actions


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

"""The OOM guard of one node: a look each second at what its engines use of their devices.

The decisions are `policies.oom_guard`'s. Engines that listen are signalled, others get fewer requests by a cap that
the web process passes on; an engine that must go is ended, and the event that tells of it lets the controller place a
new one where there is room.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never
from uuid import UUID

import structlog

from core.clock import Clock
from gpupool.agent.listening import listens, signal_listeners
from gpupool.discovery.base import Noticed
from gpupool.policies.oom_guard import Evict, GuardState, Rules, Sample, Shed, Signal, Unshed, Use, Watch, look
from gpupool.policies.oom_guard import measured_share as share_of

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
EVICTED: Final = "evicted"
"""Kind of the event on which the controller rebuilds an instance."""

_GRAVE: Final = list(GuardState)


@dataclass(frozen=True, slots=True)
class Guarded:
    """One engine that runs."""

    instance_id: UUID
    device_ids: Sequence[str]
    lease_bytes: int  # of each of its devices
    priority: int
    pids: Sequence[int]
    serving: bool  # it has come to serve: what it took at its start is taken
    preallocates: bool  # it takes nearly all that it will ever use at its start
    requests: int  # that it may have at once, or has; what a cap is made of


@dataclass(frozen=True, slots=True)
class Reading:
    """What the web process is told of one engine."""

    guard_state: str = ""
    cap: int | None = None


_NOTHING: Final = Reading()


class MemoryGuard:
    """Looks at all engines of a node."""

    def __init__(
        self,
        *,
        engines: Callable[[], Iterable[Guarded]],
        device_use: Callable[[str], Mapping[int, int | None] | None],
        end: Callable[[UUID], None],
        notice: Callable[[Noticed], None],
        on_change: Callable[[], None],
        clock: Clock,
        rules: Rules,
    ) -> None:
        """`device_use`: bytes by process on a device, None for one that does not list them. `end` ends an engine.

        The host's own memory is not guarded here: there the kernel holds an engine to its cgroup.
        """
        self._engines, self._device_use = engines, device_use
        self._end, self._notice, self._on_change = end, notice, on_change
        self._clock, self._rules = clock, rules
        self._watches: dict[tuple[UUID, str], Watch] = {}
        self._declared: dict[tuple[UUID, str], int] = {}  # what was taken when it came to serve
        self._caps: dict[UUID, int] = {}
        self._readings: dict[UUID, Reading] = {}

    def reading(self, instance_id: UUID) -> Reading:
        """The newest of one engine."""
        return self._readings.get(instance_id, _NOTHING)

    async def run(self) -> None:
        """Look each second until cancelled."""
        while True:
            try:
                self.look()
            except Exception as error:  # a defect here must not end the agent, which looks after the engines
                log.error("agent.guard_failed", exc_info=error)
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Once."""
        engines = {engine.instance_id: engine for engine in self._engines()}
        self._forget(engines)
        samples = [self._sample(engine, device) for engine in engines.values() for device in engine.device_ids]
        seen = look(samples, self._watches, self._rules)
        self._watches = seen.watches
        for step in seen.steps:
            self._carry_out(step, engines[step.instance_id])
        self._tell(engines, seen.uses)

    def _forget(self, engines: Mapping[UUID, Guarded]) -> None:
        for gone in [instance_id for instance_id in self._readings if instance_id not in engines]:
            del self._readings[gone]
            self._caps.pop(gone, None)
        self._declared = {key: value for key, value in self._declared.items() if key[0] in engines}

    def _sample(self, engine: Guarded, device: str) -> Sample:
        key = (engine.instance_id, device)
        used = self._used(engine, device)
        if not engine.serving:
            self._declared.pop(key, None)  # it loads, or loads again: nothing is settled yet
            used = None
        elif engine.preallocates and used is not None:
            self._declared.setdefault(key, used)
        sample = Sample(engine.instance_id, device, engine.lease_bytes, used, self._declared.get(key), engine.priority)
        share = share_of(sample)
        if share is None or share < self._rules.signal_share:
            return sample
        return replace(sample, listens=any(listens(pid) for pid in engine.pids))

    def _used(self, engine: Guarded, device: str) -> int | None:
        use = self._device_use(device)
        if use is None:
            return None
        own = [use[pid] for pid in engine.pids if pid in use]
        known = [used for used in own if used is not None]
        # Not listed, or not with how much: not known.
        return sum(known) if own and len(known) == len(own) else None

    def _carry_out(self, step: Signal | Shed | Unshed | Evict, engine: Guarded) -> None:
        match step:
            case Signal(reason=reason):
                sent = signal_listeners(engine.pids)
                were = "was" if sent == 1 else "were"
                self._note(engine, "memory", f"{reason} {sent} of its processes {were} asked to give memory back.")
            case Shed(reason=reason):
                self._caps[engine.instance_id] = max(1, engine.requests // 2)
                cap = self._caps[engine.instance_id]
                self._note(engine, "memory", f"{reason} It gets at most {cap} requests at once until it is calm.")
            case Unshed():
                self._caps.pop(engine.instance_id, None)
                self._note(engine, "memory", "It is calm again: it gets as many requests as before.")
            case Evict(reason=reason, device_id=device):
                log.warning("agent.engine_evicted", instance_id=str(engine.instance_id), reason=reason)
                self._note(engine, EVICTED, reason, device=device)
                self._end(engine.instance_id)
            case _:
                assert_never(step)

    def _note(self, engine: Guarded, kind: str, text: str, *, device: str = "") -> None:
        self._notice(
            Noticed(
                source="guard",
                kind=kind,
                at=self._clock.now().timestamp(),
                stable_id=device or engine.device_ids[0],
                text=text,
                data={"instance_id": str(engine.instance_id)},
            )
        )

    def _tell(self, engines: Iterable[UUID], uses: Sequence[Use]) -> None:
        changed = False
        for instance_id in engines:
            own = [use.state for use in uses if use.instance_id == instance_id]
            reading = Reading(max(own, key=_GRAVE.index, default=GuardState.WELL), self._caps.get(instance_id))
            changed |= self.reading(instance_id) != reading
            self._readings[instance_id] = reading
        if changed:
            self._on_change()

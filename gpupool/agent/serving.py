"""What an engine's process does while it runs: load, warm up, serve, sleep and wake.

Its owner (`life.EngineLife`) watches for the process's end and for the word to stop, and cancels this then.
"""

import asyncio
from typing import Final, Protocol

from gpupool.agent import engine as engines
from gpupool.agent import slumber
from gpupool.agent.engine_memory import logged_memory
from gpupool.agent.processes import EngineProcess
from gpupool.agent.state import InstanceRecord
from gpupool.agent.workshop import Workshop
from gpupool.engines.base import Engine, EngineLoad, TokenCounters
from gpupool.policies.node_reconcile import Phase
from gpupool.policies.probe import Health, ProbeResult, after_probe

QUIET_READINGS: Final = 2
"""In a row: an engine counts a request as done before the end of its answer is sent."""

_UNANSWERED: Final = "It does not answer its health endpoint in time."
_FINISHING: Final = "It finishes its requests, then it sleeps."


class Owner(Protocol):
    """What is looked after."""

    record: InstanceRecord
    load: EngineLoad

    @property
    def phase(self) -> Phase: ...

    @property
    def stopping(self) -> bool: ...

    def enter(self, phase: Phase, reason: str) -> None: ...

    def remark(self, reason: str) -> None: ...

    def log(self, event: str, **fields: object) -> None: ...


class Serving:
    """One process, from its start to its end."""

    def __init__(self, owner: Owner, shop: Workshop, engine: Engine, process: EngineProcess, *, begun: float) -> None:
        """`begun` is when its start began, in monotonic seconds."""
        port = owner.record.port
        assert port is not None  # set before the process was started
        self.settling = False
        self.ready_since: float | None = None
        self._owner, self._shop, self._engine, self._process, self._port = owner, shop, engine, process, port
        self._begun = begun
        self._rest_since: float | None = None  # when it was first told that it shall sleep
        self._not_before = 0.0  # monotonic seconds before which it is not put to sleep: it would not
        self._quiet = 0
        self._untold_since: float | None = None  # no reading since then has told how many requests run
        self._told_idle = False
        self._note = ""
        self._sleep, self._wake = asyncio.Event(), asyncio.Event()
        self._counted: TokenCounters | None = None

    # What its supervisor asks of it

    def rest(self, wanted: bool) -> None:
        """Whether it shall sleep once it is idle."""
        if wanted and self._rest_since is None:
            self._rest_since, self._quiet, self._note = self._shop.clock.monotonic(), 0, _FINISHING
        elif not wanted and self._rest_since is not None:
            self._rest_since, self._note = None, ""
            self._sleep.clear()

    @property
    def idle(self) -> bool:
        """It shall sleep, serves, and has had no request since it was told so."""
        if self._rest_since is None or self._owner.phase is not Phase.READY:
            return False
        now = self._shop.clock.monotonic()
        if now < self._not_before or now - self._rest_since < self._shop.timings.drain_notice:
            return False
        if self._untold_since is None:
            return self._quiet >= QUIET_READINGS
        # One reading that failed is no sign of idleness: a busy engine may answer late.
        return now - max(self._rest_since, self._untold_since) >= self._owner.record.row.drain_seconds

    def sleep(self) -> None:
        """Sleep now."""
        self._sleep.set()

    def wake(self) -> None:
        """Wake now."""
        self._wake.set()

    # Its life

    async def run(self, resume: Phase | None = None) -> None:
        """Until cancelled. `resume` is where an earlier agent left it. Raises NotServing."""
        if resume is Phase.ASLEEP:
            await self._rest_and_wake()
        elif resume is Phase.READY:
            self.ready_since = self._shop.clock.monotonic()
        else:
            await self._load()
        while True:
            await self._serve()
            if await self._fall_asleep():
                await self._rest_and_wake()

    async def _load(self) -> None:
        timings, row = self._shop.timings, self._owner.record.row
        device_seconds = timings.load_deadline if row.device_seconds is None else row.device_seconds
        try:
            async with asyncio.timeout(device_seconds):
                if self._owner.phase is not Phase.LOADING:
                    self._owner.enter(Phase.LOADING, "")
                await engines.until_loaded(self._engine, self._process, self._port)
        except TimeoutError:
            raise engines.NotServing(
                f"The device load stage failed: it was not loaded within {device_seconds:g} s."
            ) from None
        self._owner.enter(Phase.WARMING, "")
        await engines.warm_up(self._engine, self._port, row.served_name, deadline_seconds=timings.load_deadline)
        record = self._owner.record
        record.load_seconds = round(self._shop.clock.monotonic() - self._begun, 3)
        told = logged_memory(self._engine, record.log_path, record.log_begins)
        record.kv_capacity_bytes, record.weights_bytes = told.kv_bytes, told.weights_bytes
        record.compute_bytes, record.adapters_bytes = told.compute_bytes, told.adapters_bytes
        self._ready()

    def _ready(self) -> None:
        self.ready_since = self._shop.clock.monotonic()
        self._owner.enter(Phase.READY, self._note)
        self._owner.log("agent.engine_ready", port=self._port)
        self._shop.on_end()  # another may start on its devices now

    async def _serve(self) -> None:
        """Until it is to sleep."""
        self._sleep.clear()
        async with asyncio.TaskGroup() as group:  # apart: an engine that hangs would make both wait for each other
            tasks = (group.create_task(self._keep_reading_load()), group.create_task(self._keep_probing(awake=True)))
            await self._sleep.wait()
            for task in tasks:
                task.cancel()

    async def _fall_asleep(self) -> bool:
        """Whether it did; it serves on where it says that it does not. Raises NotServing where that is not known."""
        record, timings = self._owner.record, self._shop.timings
        self.settling = record.slumber = True
        self._owner.enter(
            Phase.READY, "It falls asleep."
        )  # also written down: the next agent must not take it for awake
        begun = self._shop.clock.monotonic()
        try:
            await slumber.fall_asleep(self._engine, self._port, deadline_seconds=timings.sleep_deadline)
        except slumber.SleepRefused as error:
            record.slumber = False
            self._note, self._not_before = str(error), self._shop.clock.monotonic() + timings.sleep_retry
            self._owner.enter(Phase.READY, self._note)
            self._owner.log("agent.engine_stays_awake", reason=self._note)
            return False
        except slumber.SleepUnclear as error:
            raise engines.NotServing(str(error)) from error
        finally:
            self.settling = False
        self._note, self._owner.load, self.ready_since = "", EngineLoad(), None
        self._owner.enter(Phase.ASLEEP, "")
        self._owner.log("agent.engine_asleep", seconds=self._shop.clock.monotonic() - begun)
        self._shop.on_end()  # its devices' memory is free for others
        return True

    async def _rest_and_wake(self) -> None:
        self._wake.clear()
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self._keep_probing(awake=False))
            await self._wake.wait()
            probing.cancel()
        record, timings, begun = self._owner.record, self._shop.timings, self._shop.clock.monotonic()
        self._owner.enter(Phase.WARMING, "It wakes.")
        try:
            async with asyncio.timeout(timings.load_deadline):
                await slumber.wake_up(self._engine, self._port, deadline_seconds=timings.load_deadline)
                record.slumber = False
                await engines.warm_up(
                    self._engine, self._port, record.row.served_name, deadline_seconds=timings.load_deadline
                )
        except slumber.SleepUnclear as error:
            raise engines.NotServing(str(error)) from error
        except TimeoutError:
            raise engines.NotServing(f"It was not awake within {timings.load_deadline:g} s.") from None
        record.wake_seconds = round(self._shop.clock.monotonic() - begun, 3)
        self._ready()

    # What is asked of it again and again

    async def _keep_reading_load(self) -> None:
        timings = self._shop.timings
        while True:
            load, counted = await engines.read_metrics(self._engine, self._port, deadline_seconds=timings.health_every)
            self._note_use(load, counted)
            self.note_load(load)
            if self.idle and not self._told_idle:
                self._shop.on_end()  # it may sleep now
            self._told_idle = self.idle
            await asyncio.sleep(timings.load_poll)

    def note_load(self, load: EngineLoad) -> None:
        """What a reading said."""
        if load != self._owner.load:
            self._owner.load = load
            self._shop.on_change()
        if load.running is not None:
            self._quiet = 0 if load.running or load.waiting else self._quiet + 1
            self._untold_since = None
        elif self._untold_since is None:
            self._untold_since = self._shop.clock.monotonic()

    def _note_use(self, load: EngineLoad, counted: TokenCounters | None) -> None:
        """A request between two readings shows in what the engine has counted."""
        before, self._counted = self._counted, counted or self._counted
        worked = counted is not None and before is not None and _tokens(counted) != _tokens(before)
        if worked or load.running or load.waiting:
            self._owner.record.last_used_at = round(self._shop.clock.now().timestamp(), 1)

    async def _keep_probing(self, *, awake: bool) -> None:
        """Take it out of routing when it does not answer, and back in when it does. Raises NotServing when it hangs.

        One that sleeps is asked for its health too, which wakes it not, and is in no routing.
        """
        timings, clock, owner = self._shop.timings, self._shop.clock, self._owner
        health, good_at = Health(), clock.monotonic()
        while True:
            begun = clock.monotonic()
            result = await engines.probe_health(self._engine, self._port, deadline_seconds=timings.health_deadline)
            if owner.stopping:
                return  # it drains; this task is being cancelled
            health = after_probe(health, result)
            now = clock.monotonic()
            if result is ProbeResult.GOOD:
                good_at = now
                if awake:
                    owner.enter(Phase.READY, self._note)
                else:
                    owner.remark("")
            elif health.ejected and now - good_at >= timings.hung_deadline:
                # Several probes, not one: where this whole machine stood still, the first may find nobody awake.
                raise engines.NotServing(f"It did not answer its health endpoint for {timings.hung_deadline:g} s.")
            elif awake and health.ejected and owner.phase is not Phase.UNKNOWN:
                owner.enter(Phase.UNKNOWN, _UNANSWERED)
                owner.log("agent.engine_unrouted", bad_probes=health.bad)
            else:
                owner.remark(_UNANSWERED)
            await asyncio.sleep(max(0.0, timings.health_every - (now - begun)))


def _tokens(counted: TokenCounters) -> tuple[int | None, int | None]:
    return counted.input_tokens, counted.output_tokens

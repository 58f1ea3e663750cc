"""One engine of this node: started or adopted, loaded, warmed, served, drained, ended.

Each has one task that lives as long as its process. Cancelling the task does not end the engine: an
agent that goes away leaves it serving, and the next one adopts it.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from core.clock import Clock
from gpupool.agent import engine as engines
from gpupool.agent.logs import make_room, telling_line
from gpupool.agent.ports import NoPortLeft, PortRange
from gpupool.agent.processes import Ended, EngineProcess, kill_marked, kill_orphans
from gpupool.agent.state import InstanceRecord, StateDir
from gpupool.engines.base import Engine, EngineLoad, GivenDevice
from gpupool.engines.registry import get_engine
from gpupool.policies.node_reconcile import (
    ALLOWED,
    CRASH_LOOP_FAILURES,
    SERVING,
    Phase,
    restart_delay_seconds,
)
from gpupool.policies.probe import SLOW_SECONDS, Health, ProbeResult, after_probe

log = structlog.get_logger(__name__)

_IDLE_READINGS: Final = 2
_UNANSWERED: Final = "It does not answer its health endpoint in time."


@dataclass(frozen=True, slots=True)
class Timings:
    """How long an engine is waited for, in seconds."""

    load_deadline: float = 600.0  # from the process's start to its health answer and warm-up token
    load_poll: float = 0.5  # between two readings of an engine's load
    health_every: float = 2.0  # between the beginnings of two health probes
    health_deadline: float = SLOW_SECONDS  # an answer that takes longer is too slow
    hung_deadline: float = 120.0  # an engine that has not answered for so long is ended, and started again
    stop_grace: float = 10.0  # between SIGTERM and SIGKILL
    drain_notice: float = 1.5  # for the doors to learn that it drains, before "idle" is believed
    settled_after: float = 60.0  # ready for so long: earlier failures are forgotten


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the engines of a node share."""

    state: StateDir
    log_dir: Path
    ports: PortRange
    ports_in_use: Callable[[], Collection[int]]
    devices: Callable[[], Mapping[str, GivenDevice]]
    on_change: Callable[[], None]  # something changed that the web process should hear of soon
    on_end: Callable[[], None]  # a process ended: reconcile
    clock: Clock
    timings: Timings


class EngineLife:
    """What the agent knows of one engine, and the task that looks after it."""

    def __init__(self, record: InstanceRecord, workshop: Workshop, *, failures: int = 0) -> None:
        self.record = record
        self.process: EngineProcess | None = None
        self.load = EngineLoad()
        self.failures = failures  # starts in a row that came to nothing
        self.start_after: float | None = workshop.clock.monotonic()
        """Monotonic seconds before which it is not started again; None: not until its row changes."""
        self._shop = workshop
        self._task: asyncio.Task[object] | None = None
        self._ready_since: float | None = None
        self._stop = asyncio.Event()
        self._drain_seconds = 0.0
        self._stop_reason = ""
        self._log_begins = 0  # where the log of the present process begins, in bytes

    @property
    def instance_id(self) -> UUID:
        return self.record.row.instance_id

    @property
    def phase(self) -> Phase:
        return Phase(self.record.phase)

    @property
    def alive(self) -> bool:
        """Its process exists, or is being made."""
        return self._task is not None

    def begin(self) -> None:
        """Start a process for it."""
        self._look_after(self._launch())

    def take_over(self, process: EngineProcess) -> None:
        """Look after a process that an earlier agent started."""
        self.process = process
        if self.phase is Phase.READY:
            self._ready_since = self._shop.clock.monotonic()
        self._look_after(self._attend(get_engine(self.record.row.engine), process, was_ready=self.phase is Phase.READY))

    def stop(self, drain_seconds: float, reason: str) -> None:
        """Ask it to end; a second call can only shorten the draining."""
        if not self.alive:
            self._enter(Phase.STOPPED, reason)
            return
        if self._stop.is_set():
            self._drain_seconds = min(self._drain_seconds, drain_seconds)
            return
        self._drain_seconds, self._stop_reason = drain_seconds, reason
        self._stop.set()

    async def ended(self) -> None:
        """Wait until nothing of it runs."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def let_go(self) -> None:
        """Stop looking after it; its process goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # The task

    def _look_after(self, life: Coroutine[Any, Any, object]) -> None:
        self._task = asyncio.create_task(life, name=f"engine-{self.instance_id}")
        self._task.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[object]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours. One engine's trouble must not end the agent, nor leave an engine unattended.
            log.error("agent.engine_task_failed", instance_id=str(self.instance_id), exc_info=error)
            if self.process is not None:
                self.process.signal(signal.SIGKILL)
            self._forget_process()
            if self._stop.is_set():
                self._enter(Phase.STOPPED, self._stop_reason)
            else:
                self._failed(f"The agent failed while it looked after this engine: {error!r}.")
        self._shop.on_end()

    async def _launch(self) -> None:
        row = self.record.row
        try:
            prepared = await asyncio.to_thread(engines.prepare, row, dict(self._shop.devices()))
            for _ in range(len(self._shop.ports)):
                if self._stop.is_set():
                    self._enter(Phase.STOPPED, self._stop_reason)
                    return
                process = self._spawn(prepared)
                ended = await self._attend(prepared.engine, process)
                if ended is None:
                    return
                self._log("agent.port_taken", port=self.record.port)
                self._enter(Phase.STAGING, "")
            raise NoPortLeft("Every engine port of this node is taken by other programs.")
        except engines.LaunchRefused as error:
            self._failed(str(error), retry=error.retry, started=False)
        except NoPortLeft as error:
            self._failed(str(error), started=False)

    def _spawn(self, prepared: engines.Prepared) -> EngineProcess:
        row, record = self.record.row, self.record
        port = self._shop.ports.take(self._shop.ports_in_use())
        log_path = self._shop.log_dir / f"engine-{row.instance_id}.log"
        record.log_path = str(log_path)
        record.port = port
        record.pid = record.start_mark = record.process_started_at = None
        try:
            self._log_begins = make_room(log_path)
            self._shop.state.save(record)  # before the process: it must be found again whatever happens next
        except OSError as error:
            raise engines.LaunchRefused(
                f"The agent cannot write to its folder: {error.strerror}.", retry=True
            ) from error
        plan, process = engines.launch(prepared, port=port, mark=self._shop.state.mark(row), log_path=log_path)
        record.pid, record.start_mark, record.process_started_at = process.pid, process.mark, process.started_at
        record.slots = plan.slots
        self.process = process
        self._enter(Phase.LOADING, "")
        self._log("agent.engine_started", pid=process.pid, port=port)
        return process

    async def _attend(self, engine: Engine, process: EngineProcess, *, was_ready: bool = False) -> Ended | None:
        """Look after a process to its end. Returns how it ended only when its port was taken, to try another."""
        serving = asyncio.create_task(self._serve(engine, process, was_ready=was_ready))
        ending = asyncio.create_task(process.ended())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({serving, ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set() and not ending.done():
                serving.cancel()
                await self._drain(engine, process)
                await engines.terminate(process, grace_seconds=self._shop.timings.stop_grace)
            failure = None
            if not ending.done() and serving.done() and not serving.cancelled():
                failure = _first(serving.exception())
                await engines.terminate(process, grace_seconds=self._shop.timings.stop_grace)
            ended = await ending
        finally:
            for task in (serving, ending, stopping):
                task.cancel()
            await asyncio.gather(serving, ending, stopping, return_exceptions=True)
        if failure is not None and not isinstance(failure, engines.NotServing):
            raise failure
        kill_orphans(process.pid, self._shop.log_dir)
        return self._after_end(engine, ended, failure)

    async def _serve(self, engine: Engine, process: EngineProcess, *, was_ready: bool) -> None:
        row, port, timings = self.record.row, self.record.port, self._shop.timings
        assert port is not None  # set before the process was started
        if not was_ready:
            try:
                async with asyncio.timeout(timings.load_deadline):
                    if self.phase is not Phase.LOADING:
                        self._enter(Phase.LOADING, "")
                    await engines.until_loaded(engine, process, port)
                    self._enter(Phase.WARMING, "")
                    await engines.warm_up(engine, port, row.served_name, deadline_seconds=timings.load_deadline)
            except TimeoutError:
                raise engines.NotServing(f"It was not ready within {timings.load_deadline:g} s.") from None
            self._ready_since = self._shop.clock.monotonic()
            self._enter(Phase.READY, "")
            self._log("agent.engine_ready", port=port)
        async with asyncio.TaskGroup() as group:  # apart: an engine that hangs would make both wait for each other
            group.create_task(self._keep_reading_load(engine, port))
            group.create_task(self._keep_probing(engine, port))

    async def _keep_reading_load(self, engine: Engine, port: int) -> None:
        timings = self._shop.timings
        while True:
            load = await engines.read_load(engine, port, deadline_seconds=timings.health_every)
            if load != self.load:
                self.load = load
                self._shop.on_change()
            await asyncio.sleep(timings.load_poll)

    async def _keep_probing(self, engine: Engine, port: int) -> None:
        """Take it out of routing when it does not answer, and back in when it does. Raises NotServing when it hangs."""
        timings, clock = self._shop.timings, self._shop.clock
        health, good_at = Health(), clock.monotonic()
        while True:
            begun = clock.monotonic()
            result = await engines.probe_health(engine, port, deadline_seconds=timings.health_deadline)
            if self._stop.is_set():
                return  # it drains; this task is being cancelled
            health = after_probe(health, result)
            now = clock.monotonic()
            if result is ProbeResult.GOOD:
                good_at = now
                self._enter(Phase.READY, "")
            elif health.ejected and now - good_at >= timings.hung_deadline:
                # Several probes, not one: where this whole machine stood still, the first may find nobody awake.
                raise engines.NotServing(f"It did not answer its health endpoint for {timings.hung_deadline:g} s.")
            elif health.ejected and self.phase is not Phase.UNKNOWN:
                self._enter(Phase.UNKNOWN, _UNANSWERED)
                self._log("agent.engine_unrouted", bad_probes=health.bad)
            else:
                self._remark(_UNANSWERED)
            await asyncio.sleep(max(0.0, timings.health_every - (now - begun)))

    async def _drain(self, engine: Engine, process: EngineProcess) -> None:
        self._enter(Phase.DRAINING, self._stop_reason)
        timings, port = self._shop.timings, self.record.port
        if self._drain_seconds <= 0 or port is None or self._ready_since is None:
            return
        begun, quiet = self._shop.clock.monotonic(), 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while process.alive():
                    self.load = await engines.read_load(engine, port, deadline_seconds=timings.health_every)
                    waited = self._shop.clock.monotonic() - begun
                    idle = self.load.running == 0 and not self.load.waiting
                    # Twice in a row: an engine counts a request as done before the end of its answer is sent.
                    quiet = quiet + 1 if idle else 0
                    if waited >= self._drain_seconds or (quiet >= _IDLE_READINGS and waited >= timings.drain_notice):
                        return
                    await asyncio.sleep(timings.load_poll)

    # What follows from an end

    def _after_end(self, engine: Engine, ended: Ended, failure: BaseException | None) -> Ended | None:
        phase = self.phase
        self._forget_process()
        kill_marked(self._shop.state.mark(self.record.row))
        if self._stop.is_set():
            self._enter(Phase.STOPPED, self._stop_reason)
            self._log("agent.engine_stopped", reason=self._stop_reason)
            return None
        taken = engine.launch.address_in_use_exit_code if engine.launch is not None else None
        if phase is Phase.LOADING and taken is not None and ended.exit_code == taken:
            return ended
        reason = str(failure) if failure is not None else f"The engine {ended.describe()} while {phase}."
        if phase not in SERVING and self.record.log_path is not None:
            line = telling_line(Path(self.record.log_path), since=self._log_begins)
            reason += f" Its log says: {line}" if line else ""
        if phase in SERVING and self._ready_for() >= self._shop.timings.settled_after:
            self.failures = 0
        self._failed(reason)
        return None

    def _failed(self, reason: str, *, retry: bool = True, started: bool = True) -> None:
        """It came to nothing: wait and be started again.

        Reported as failed, instead of on its way, when it could not even be started or failed too often.
        """
        self.failures += 1
        self.record.restarts += started
        self._forget_process()
        self._ready_since = None
        delay = restart_delay_seconds(self.failures)
        self.start_after = self._shop.clock.monotonic() + delay if retry else None
        given_up = not started or self.failures >= CRASH_LOOP_FAILURES
        self._enter(Phase.FAILED if given_up else Phase.STAGING, reason)
        self._log("agent.engine_failed", reason=reason, failures=self.failures, retry_seconds=delay if retry else None)

    def _forget_process(self) -> None:
        self.process = None
        self.load = EngineLoad()
        self.record.pid = self.record.start_mark = self.record.process_started_at = None

    def _ready_for(self) -> float:
        return 0.0 if self._ready_since is None else self._shop.clock.monotonic() - self._ready_since

    def _enter(self, phase: Phase, reason: str) -> None:
        before = self.phase
        assert phase is before or phase in ALLOWED[before], f"{before} does not become {phase}"
        if phase is before and reason == self.record.reason:
            return
        self.record.phase, self.record.reason = phase, reason
        try:
            self._shop.state.save(self.record)
        except OSError as error:
            self._log("agent.state_not_saved", error=str(error))
        self._shop.on_change()

    def _remark(self, reason: str) -> None:
        if reason != self.record.reason:
            self.record.reason = reason
            self._shop.on_change()

    def _log(self, event: str, **fields: object) -> None:
        log.info(event, instance_id=str(self.instance_id), engine=self.record.row.engine, **fields)


def _first(error: BaseException | None) -> BaseException | None:
    """The first of those that a group of tasks ended with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

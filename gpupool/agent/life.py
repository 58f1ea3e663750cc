"""One engine of this node: started or adopted, loaded, warmed, served, drained, ended.

Each has one task that lives as long as its process. Cancelling the task does not end the engine: an
agent that goes away leaves it serving, and the next one adopts it.
"""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from gpupool.agent import engine as engines
from gpupool.agent import page_cache
from gpupool.agent.device_memory import memory_held
from gpupool.agent.launcher import compare_weights
from gpupool.agent.logs import make_room, telling_line
from gpupool.agent.ports import NoPortLeft
from gpupool.agent.processes import Ended, EngineProcess, kill_marked, kill_orphans
from gpupool.agent.seen import fingerprint
from gpupool.agent.serving import QUIET_READINGS, Serving
from gpupool.agent.staging import keep_at_hand
from gpupool.agent.state import InstanceRecord
from gpupool.agent.workshop import Workshop
from gpupool.engines.base import Engine, EngineLoad, why_not_asleep
from gpupool.engines.registry import engines as engines_by_name
from gpupool.engines.registry import get_engine
from gpupool.policies.node_reconcile import (
    ALLOWED,
    CRASH_LOOP_FAILURES,
    SERVING,
    STARTING,
    Phase,
    restart_delay_seconds,
)
from gpupool.policies.tiers import started_from

log = structlog.get_logger(__name__)


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
        self._serving: Serving | None = None
        self._reading: asyncio.Task[None] | None = None  # its weights into the page cache
        self.peak_bytes: int | None = None  # most that its processes had of its devices
        self._begun = 0.0  # when its start began, in monotonic seconds
        self._stop = asyncio.Event()
        self._put_down = False  # it is being ended because it cannot sleep
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

    @property
    def extra_ports(self) -> int:
        """How many ports its engine has beside its own."""
        known = engines_by_name().get(self.record.row.engine)
        return 0 if known is None else known.extra_ports

    @property
    def stopping(self) -> bool:
        """It was told to end."""
        return self._stop.is_set()

    @property
    def idle(self) -> bool:
        """It serves, is to sleep, and has had no request since it was told so."""
        return self._serving is not None and self._serving.idle

    @property
    def settling(self) -> bool:
        """It falls asleep at this moment."""
        return self._put_down or (self._serving is not None and self._serving.settling)

    def begin(self) -> None:
        """Start a process for it."""
        self._begun = self._shop.clock.monotonic()
        self._look_after(self._launch())

    def take_over(self, process: EngineProcess) -> None:
        """Look after a process that an earlier agent started."""
        self.process, self._begun = process, self._shop.clock.monotonic()
        resume = self.phase if self.phase in (Phase.READY, Phase.ASLEEP) else None
        self._look_after(self._attend(get_engine(self.record.row.engine), process, resume=resume))

    def rest(self, wanted: bool) -> None:
        """Whether it shall sleep, once it is idle and told to by `sleep`."""
        if self._serving is not None:
            self._serving.rest(wanted)

    def sleep(self) -> None:
        """Let it give its devices' memory back, now: an engine that cannot do that ends, its weights stay at hand."""
        if self._serving is None:
            return
        if why_not_asleep(get_engine(self.record.row.engine), self.record.row.engine_args):
            self._put_down = True
            self._stop.set()
        else:
            self._serving.sleep()

    def wake(self) -> None:
        """Let it serve again."""
        if self._serving is not None:
            self._serving.wake()

    def bind(self, tenant_id: UUID | None) -> None:
        """Its traffic is this tenant's from now on; the signature has been checked."""
        if tenant_id != self.record.verified_tenant:
            self.record.verified_tenant = tenant_id
            self._saved()
            self._shop.on_change()

    def retire(self) -> None:
        """Another takes its place; it has no process."""
        if self._reading is not None:
            self._reading.cancel()

    def stage(self) -> None:
        """Without a process: keep its weights in the page cache, as near as it gets to sleep."""
        self.enter(Phase.ASLEEP, "It has no process. Its weights are being read into the page cache.")
        self._reading = asyncio.create_task(keep_at_hand(self, self._shop.reading), name=f"stage-{self.instance_id}")

    def stop(self, drain_seconds: float, reason: str) -> None:
        """Ask it to end; a second call can only shorten the draining."""
        if not self.alive:
            self.enter(Phase.STOPPED, reason)
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
        if self._reading is not None:
            self._reading.cancel()
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
                self.enter(Phase.STOPPED, self._stop_reason)
            else:
                self._failed(f"The agent failed while it looked after this engine: {error!r}.")
        self._shop.on_end()

    async def _launch(self) -> None:
        row = self.record.row
        try:
            prepared = await asyncio.to_thread(self._shop.launcher.prepare, row, dict(self._shop.devices()))
            files = await asyncio.to_thread(page_cache.weight_files, prepared.model_path)
            share = await asyncio.to_thread(page_cache.cached_share, files)
            self.record.started_from = started_from(share)
            await self._check_weights(prepared)
            for _ in range(len(self._shop.ports)):
                if self._stop.is_set():
                    self.enter(Phase.STOPPED, self._stop_reason)
                    return
                process = self._spawn(prepared)
                ended = await self._attend(prepared.engine, process)
                if ended is None:
                    return
                self.log("agent.port_taken", port=self.record.port)
                self.enter(Phase.STAGING, "")
            raise NoPortLeft("Every engine port of this node is taken by other programs.")
        except engines.LaunchRefused as error:
            self._shop.cache.clean(row)
            if self._stop.is_set():
                self.enter(Phase.STOPPED, self._stop_reason)
                return
            self._failed(str(error), retry=error.retry, started=False)
        except NoPortLeft as error:
            self._failed(str(error), started=False)

    async def _check_weights(self, prepared: engines.Prepared) -> None:
        """Raises LaunchRefused. What was compared and has not been touched since is not read again."""
        row = self.record.row
        known = await asyncio.to_thread(fingerprint, prepared.model_path, row.manifest)
        if not known or known != self.record.checked:
            self.remark("Its weights are compared with their checksums." if row.manifest else self.record.reason)
            await compare_weights(self._shop.launcher, prepared, self._stop)
        self.record.checked = known

    def _spawn(self, prepared: engines.Prepared) -> EngineProcess:
        row, record = self.record.row, self.record
        port = self._shop.ports.take(self._shop.ports_in_use(), prepared.engine.extra_ports)
        log_path = self._shop.log_dir / f"engine-{row.instance_id}.log"
        record.log_path = str(log_path)
        record.port = port
        record.pid = record.start_mark = record.process_started_at = None
        try:
            self._log_begins = record.log_begins = make_room(log_path)
            cache = self._shop.cache.prepare(row)
            self._shop.state.save(record)  # before the process: it must be found again whatever happens next
        except OSError as error:
            raise engines.LaunchRefused(
                f"The agent cannot write to its folder: {error.strerror}.", retry=True
            ) from error
        plan, process = self._shop.launcher.launch(
            prepared,
            port=port,
            mark=self._shop.state.mark(row),
            log_path=log_path,
            host=self._shop.host,
            isolator=self._shop.isolator,
            cache=cache,
        )
        record.pid, record.start_mark, record.process_started_at = process.pid, process.mark, process.started_at
        record.slots = plan.slots
        self.process = process
        self.enter(Phase.LOADING, "")
        self.log("agent.engine_started", pid=process.pid, port=port)
        return process

    async def _attend(self, engine: Engine, process: EngineProcess, *, resume: Phase | None = None) -> Ended | None:
        """Look after a process to its end. Returns how it ended only when its port was taken, to try another."""
        self._serving = Serving(self, self._shop, engine, process, begun=self._begun)
        serving = asyncio.create_task(self._serving.run(resume))
        family = {process.pid}
        ending = asyncio.create_task(process.ended())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({serving, ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            family |= set(process.members())
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
        kill_marked(self._shop.state.mark(self.record.row))
        limited = self._shop.isolator.ended(self.instance_id)
        held = f"{limited} {await memory_held(self, self._shop, family)}".strip()
        return self._after_end(engine, ended, failure, held=held)

    async def _drain(self, engine: Engine, process: EngineProcess) -> None:
        if self._put_down:
            return  # it has no requests
        self.enter(Phase.DRAINING, self._stop_reason)
        timings, port = self._shop.timings, self.record.port
        if self._drain_seconds <= 0 or port is None or self._serving is None or self._serving.ready_since is None:
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
                    if waited >= self._drain_seconds or (quiet >= QUIET_READINGS and waited >= timings.drain_notice):
                        return
                    await asyncio.sleep(timings.load_poll)

    # What follows from an end

    def _after_end(self, engine: Engine, ended: Ended, failure: BaseException | None, *, held: str) -> Ended | None:
        phase, ready_for = self.phase, self._ready_for()
        self._forget_process()
        if self._put_down and phase in SERVING:
            self._put_down = False
            self.stage()
            return None
        if self._stop.is_set():
            self.enter(Phase.STOPPED, f"{self._stop_reason} {held}".strip())
            self.log("agent.engine_stopped", reason=self._stop_reason)
            return None
        taken = engine.launch.address_in_use_exit_code if engine.launch is not None else None
        if phase is Phase.LOADING and taken is not None and ended.exit_code == taken:
            return ended
        reason = str(failure) if failure is not None else f"The engine {ended.describe()} while {phase}."
        if phase not in SERVING and self.record.log_path is not None:
            line = telling_line(Path(self.record.log_path), since=self._log_begins)
            reason += f" Its log says: {line}" if line else ""
        if phase in SERVING and ready_for >= self._shop.timings.settled_after:
            self.failures = 0
        if phase in STARTING:
            self.record.checked = ""  # perhaps its files are to blame
            self._shop.cache.clean(self.record.row)  # what a broken start left there would break the next one too
        self._failed(f"{reason} {held}".strip())
        return None

    def _failed(self, reason: str, *, retry: bool = True, started: bool = True) -> None:
        """It came to nothing: wait and be started again.

        Reported as failed, instead of on its way, when it could not even be started or failed too often.
        """
        self.failures += 1
        self.record.restarts += started
        self._forget_process()
        delay = restart_delay_seconds(self.failures)
        self.start_after = self._shop.clock.monotonic() + delay if retry else None
        given_up = not started or self.failures >= CRASH_LOOP_FAILURES
        self.enter(Phase.FAILED if given_up else Phase.STAGING, reason)
        self.log("agent.engine_failed", reason=reason, failures=self.failures, retry_seconds=delay if retry else None)

    def _forget_process(self) -> None:
        self.process = self._serving = None
        self.load = EngineLoad()
        self.record.slumber = False
        self.record.pid = self.record.start_mark = self.record.process_started_at = None

    def _ready_for(self) -> float:
        since = None if self._serving is None else self._serving.ready_since
        return 0.0 if since is None else self._shop.clock.monotonic() - since

    def enter(self, phase: Phase, reason: str) -> None:
        before = self.phase
        assert phase is before or phase in ALLOWED[before], f"{before} does not become {phase}"
        if phase is before and reason == self.record.reason:
            return
        self.record.phase, self.record.reason = phase, reason
        self._saved()
        self._shop.on_change()

    def _saved(self) -> None:
        try:
            self._shop.state.save(self.record)
        except OSError as error:
            self.log("agent.state_not_saved", error=str(error))

    def remark(self, reason: str) -> None:
        if reason != self.record.reason:
            self.record.reason = reason
            self._shop.on_change()

    def log(self, event: str, **fields: object) -> None:
        log.info(event, instance_id=str(self.instance_id), engine=self.record.row.engine, **fields)


def _first(error: BaseException | None) -> BaseException | None:
    """The first of those that a group of tasks ended with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

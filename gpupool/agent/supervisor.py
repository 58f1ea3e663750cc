"""Brings the node's engines in line with the desired rows; the decisions are `policies.node_reconcile`'s."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, assert_never
from uuid import UUID

import structlog

from core.clock import Clock
from gpupool.agent import engine as engines
from gpupool.agent.adoption import adopt_all
from gpupool.agent.guard import MemoryGuard
from gpupool.agent.guarded import guarded
from gpupool.agent.instance_facts import absent, living, used_by
from gpupool.agent.isolation.launcher import NO_ISOLATION, Isolator
from gpupool.agent.launcher import PROCESSES, Launcher
from gpupool.agent.life import EngineLife
from gpupool.agent.logs import trim
from gpupool.agent.model_cache import ModelCache
from gpupool.agent.ports import PortRange
from gpupool.agent.state import InstanceRecord, StateDir
from gpupool.agent.workshop import Timings, Workshop
from gpupool.discovery.base import Noticed
from gpupool.engines.base import GivenDevice
from gpupool.policies.node_reconcile import (
    SERVING,
    Forget,
    Ignore,
    Known,
    Phase,
    Sleep,
    Stage,
    Start,
    Stop,
    Wake,
    Wish,
    decide,
    next_due,
)
from gpupool.policies.oom_guard import Rules as GuardRules
from gpupool.policies.tenant_switch import Barred, Decision, Switched, decide_switch, routed_tenant
from gpupool.stream.messages import DesiredInstance, EngineLoadFact, InstanceFact

log = structlog.get_logger(__name__)

_RESYNC_SECONDS: Final = 5.0


class Supervisor:
    """All engines of this node."""

    def __init__(
        self,
        *,
        state: StateDir,
        log_dir: Path,
        ports: PortRange,
        clock: Clock,
        devices: Callable[[], Mapping[str, GivenDevice]],
        device_bytes: Callable[[str], int | None] = lambda device_id: None,
        device_use: Callable[[str], Mapping[int, int | None] | None] = lambda device_id: None,
        switch_key: bytes = b"",
        isolator: Isolator = NO_ISOLATION,
        launcher: Launcher | None = None,
        host: str = "127.0.0.1",
        notice: Callable[[Noticed], None] = lambda noticed: None,
        on_change: Callable[[], None] = lambda: None,
        timings: Timings | None = None,
        guard_rules: GuardRules | None = None,
    ) -> None:
        """`on_change` is called when something changed that the web process should hear of soon.

        `device_use` says how many bytes of a device each process has; `switch_key` is policies.tenant_switch's;
        engines listen on `host`; `notice` tells the web process of something that happened.
        """
        self._wake = asyncio.Event()
        self._shop = Workshop(
            state=state,
            log_dir=log_dir,
            ports=ports,
            ports_in_use=self._ports_in_use,
            devices=devices,
            device_use=device_use,
            on_change=on_change,
            on_end=self._wake.set,
            clock=clock,
            timings=timings or Timings(),
            cache=ModelCache(state.path / "model_cache"),
            isolator=isolator,
            launcher=launcher or PROCESSES,
            host=host,
            notice=notice,
        )
        self._switch_key = switch_key
        self._device_bytes = device_bytes
        self._guard = MemoryGuard(
            engines=lambda: guarded(self._lives.values()),
            device_use=device_use,
            end=self._evict,
            notice=notice,
            on_change=on_change,
            clock=clock,
            rules=guard_rules or GuardRules(),
        )
        self._evicting: set[asyncio.Task[None]] = set()
        self._lives: dict[UUID, EngineLife] = {}
        self._rows: dict[UUID, DesiredInstance] | None = None  # None: nothing heard since this agent started
        self._fences: dict[str, int] = {}
        self._ignored: dict[UUID, str] = {}
        self._connected = False
        self._ending = False

    async def adopt(self) -> None:
        """Take over what an earlier agent of this node left running; call once, before `run`."""
        self._fences = self._shop.state.load_fences()
        for adopted in await adopt_all(self._shop.state):
            life = EngineLife(adopted.record, self._shop)
            self._lives[life.instance_id] = life
            if adopted.process is not None:
                log.info(
                    "agent.engine_adopted",
                    instance_id=str(life.instance_id),
                    pid=adopted.process.pid,
                    phase=adopted.record.phase,
                )
                life.take_over(adopted.process)
            elif life.phase is Phase.ASLEEP:
                life.stage()  # what was read may be gone, or was not read to its end

    async def run(self) -> None:
        """Reconcile whenever something changes, until cancelled. Engines outlive the cancellation."""
        guarding = asyncio.create_task(self._guard.run(), name="guard")
        try:
            while True:
                self._wake.clear()
                self._reconcile()
                self._trim_logs()
                now = self._shop.clock.monotonic()
                due = next_due(self._wishes(), self._known(), now=now)
                wait = _RESYNC_SECONDS if due is None else min(_RESYNC_SECONDS, due - now)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
        finally:
            guarding.cancel()
            for life in self._lives.values():
                await life.let_go()

    def set_desired(self, rows: list[DesiredInstance]) -> None:
        """The whole desired state of this node, as just read from the web process."""
        if self._ending:
            return
        self._rows = {row.instance_id: row for row in rows}
        self._connected = True
        self._raise_fences(rows)
        self._wake.set()

    def set_disconnected(self) -> None:
        """Nobody speaks for the desired state now: keep serving, start nothing."""
        self._connected = False
        self._wake.set()

    def facts(self) -> list[InstanceFact]:
        """Every engine as it is now, and an answer to every row that asks for one."""
        facts = [
            living(life, used_by(life, self._shop.device_use), self._guard.reading(life.instance_id))
            for life in self._lives.values()
        ]
        for row in (self._rows or {}).values():
            if row.instance_id in self._lives:
                continue
            if row.state == "stopped":  # the web process waits for this word before it lets the lease go
                facts.append(absent(row, Phase.STOPPED, "It does not run on this node."))
            elif row.instance_id in self._ignored:
                facts.append(absent(row, Phase.FAILED, self._ignored[row.instance_id]))
        return facts

    def loads(self) -> list[EngineLoadFact]:
        """Load of the engines that serve, as they said last."""
        return [
            EngineLoadFact(
                instance_id=life.instance_id,
                running=life.load.running,
                waiting=life.load.waiting,
                kv_used=life.load.kv_used,
            )
            for life in self._lives.values()
            if life.phase in (Phase.READY, Phase.DRAINING)
        ]

    def memory_by_device(self) -> dict[str, int]:
        """Resident bytes of this node's engines by device; an engine on several counts on its first."""
        used: dict[str, int] = {}
        for life in self._lives.values():
            rss = life.process.rss_bytes() if life.process is not None else None
            if rss is not None and life.record.row.device_ids:
                device = life.record.row.device_ids[0]
                used[device] = used.get(device, 0) + rss
        return used

    def running(self) -> list[tuple[DesiredInstance, list[int]]]:
        """Rows of the engines that run, each with its processes."""
        return [(life.record.row, life.process.members()) for life in self._lives.values() if life.process is not None]

    def owners(self) -> dict[int, UUID]:
        """Which instance each process of this node's engines belongs to."""
        return {pid: row.instance_id for row, pids in self.running() for pid in pids}

    def _evict(self, instance_id: UUID) -> None:
        """End the process; the controller, which hears of it, says what becomes of the instance."""
        life = self._lives.get(instance_id)
        if life is None or life.process is None:
            return
        ending = asyncio.create_task(engines.terminate(life.process, grace_seconds=self._shop.timings.stop_grace))
        self._evicting.add(ending)
        ending.add_done_callback(self._evicting.discard)

    async def stop_all(self) -> None:
        """Stop every engine without draining, and start none any more."""
        self._rows, self._connected, self._ending = None, False, True
        for life in self._lives.values():
            life.stop(0.0, "The agent was told to stop its engines.")
        for life in list(self._lives.values()):
            await life.ended()

    def _reconcile(self) -> None:
        now = self._shop.clock.monotonic()
        for row in (self._rows or {}).values():
            if (life := self._lives.get(row.instance_id)) is not None:
                life.rest(row.state == "asleep")
                decision = self._switch(row)
                if isinstance(decision, Switched) and life.record.row.fencing_token == row.fencing_token:
                    life.bind(decision.tenant_id)
        actions = decide(self._wishes(), self._known(), connected=self._connected, now=now, fences=self._fences)
        ignored: dict[UUID, str] = {}
        for action in actions:
            match action:
                case Start(instance_id=instance_id):
                    self._start(instance_id)
                case Stop(instance_id=instance_id, drain_seconds=drain_seconds, reason=reason):
                    self._lives[instance_id].stop(drain_seconds, reason)
                case Sleep(instance_id=instance_id):
                    self._lives[instance_id].sleep()
                case Wake(instance_id=instance_id):
                    self._lives[instance_id].wake()
                case Stage(instance_id=instance_id):
                    self._stage(instance_id)
                case Forget(instance_id=instance_id):
                    del self._lives[instance_id]
                    self._shop.state.forget(instance_id)
                    self._shop.isolator.forget(instance_id)
                    self._shop.on_change()
                case Ignore(instance_id=instance_id, reason=reason):
                    ignored[instance_id] = reason
                    if self._ignored.get(instance_id) != reason:
                        log.warning("agent.row_ignored", instance_id=str(instance_id), reason=reason)
                        self._shop.on_change()
                case _:
                    assert_never(action)
        self._ignored = ignored

    def _start(self, instance_id: UUID) -> None:
        self._renew(instance_id).begin()
        self._shop.on_change()

    def _stage(self, instance_id: UUID) -> None:
        self._renew(instance_id).stage()

    def _renew(self, instance_id: UUID) -> EngineLife:
        """A life after its row as it is now; what was learned of the instance goes on."""
        assert self._rows is not None  # only a row asks for it
        row, old = self._rows[instance_id], self._lives.get(instance_id)
        record, failures = InstanceRecord(row=row, phase=Phase.STAGING), 0
        same = old is not None and old.record.row.fencing_token == row.fencing_token
        bound = old.record.verified_tenant if old is not None and same else None
        record.verified_tenant = routed_tenant(self._switch(row), bound)
        if old is not None:
            record.restarts, record.reason = old.record.restarts, old.record.reason
            record.load_seconds, record.wake_seconds = old.record.load_seconds, old.record.wake_seconds
            record.started_from, record.last_used_at = old.record.started_from, old.record.last_used_at
            record.checked = old.record.checked
            if old.record.row.fencing_token == row.fencing_token:
                failures = old.failures
            old.retire()
        life = self._lives[instance_id] = EngineLife(record, self._shop, failures=failures)
        return life

    def _switch(self, row: DesiredInstance) -> Decision:
        """Whether the row's tenant may be served by what is here of its instance."""
        life = self._lives.get(row.instance_id)
        return decide_switch(
            key=self._switch_key,
            instance_id=row.instance_id,
            tenant_id=row.tenant_id,
            fencing_token=row.fencing_token,
            signature=row.signature,
            bound=None if life is None else life.record.verified_tenant,
            seen_token=0 if life is None else life.record.row.fencing_token,
            serving=life is not None and life.alive and life.phase in SERVING,
        )

    def _wishes(self) -> list[Wish] | None:
        return None if self._rows is None else [self._wish(row) for row in self._rows.values()]

    def _wish(self, row: DesiredInstance) -> Wish:
        sizes = [self._device_bytes(device) for device in row.device_ids]
        switch = self._switch(row)
        return Wish(
            instance_id=row.instance_id,
            running=row.state == "running",
            fencing_token=row.fencing_token,
            device_ids=frozenset(row.device_ids),
            drain_seconds=row.drain_seconds,
            whole_device=bool(sizes) and all(size is not None and row.memory_bytes >= size for size in sizes),
            asleep=row.state == "asleep",
            barred=switch.reason if isinstance(switch, Barred) else "",
        )

    def _known(self) -> list[Known]:
        return [
            Known(
                instance_id=life.instance_id,
                fencing_token=life.record.row.fencing_token,
                device_ids=frozenset(life.record.row.device_ids),
                phase=life.phase,
                alive=life.alive,
                start_after=life.start_after,
                idle=life.idle,
                settling=life.settling,
            )
            for life in self._lives.values()
        ]

    def _ports_in_use(self) -> set[int]:
        used: set[int] = set()
        for life in self._lives.values():
            if life.process is not None and life.record.port:
                used.update(range(life.record.port, life.record.port + 1 + life.extra_ports))
        return used

    def _raise_fences(self, rows: list[DesiredInstance]) -> None:
        raised = dict(self._fences)
        for row in rows:
            for device in row.device_ids:
                raised[device] = max(raised.get(device, 0), row.fencing_token)
        if raised != self._fences:
            self._fences = raised
            try:
                self._shop.state.save_fences(raised)
            except OSError as error:
                log.error("agent.fences_not_saved", error=str(error))

    def _trim_logs(self) -> None:
        for life in self._lives.values():
            if life.record.log_path is not None and life.process is not None:
                trim(Path(life.record.log_path))

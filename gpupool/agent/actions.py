"""Carries out what the web process wants done about this node's devices, one action at a time, and tells how it ended.

Wanted are rows: one stands until its end has been told and kept. Nothing is done to a device that a process still
holds, and nothing at all in a dry run, which makes the same checks and says what it would have run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import structlog

from core.clock import Clock
from gpupool.agent.listening import signal_listeners
from gpupool.agent.state import read_file, replace_file
from gpupool.agent.tools import run_tool
from gpupool.discovery.base import Device
from gpupool.discovery.tools import ToolFailed
from gpupool.policies.remedy import LIMIT_POWER, RESETS, Remedy
from gpupool.stream.messages import ActionFact, DesiredInstance, DeviceAction

log = structlog.get_logger(__name__)

_ENDED: Final = frozenset({"done", "failed", "dry_run"})
_MEMORY_SLACK_BYTES: Final = 1 << 30
"""What a driver itself may keep of a device that nobody uses."""


class CannotAct(Exception):
    """It is not done; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    holders: float = 20.0  # for processes that are ending to leave a device
    poll: float = 0.5
    reset: float = 180.0
    notice: float = 3.0  # for the word that the node restarts to get out


class _Kept(msgspec.Struct):
    ended: list[ActionFact] = []


class ActionRunner:
    """The actions of one node."""

    def __init__(
        self,
        *,
        path: Path,
        devices: Callable[[], Sequence[Device]],
        running: Callable[[], Iterable[tuple[DesiredInstance, Sequence[int]]]],
        on_change: Callable[[], None],
        reboot_command: Sequence[str],
        clock: Clock,
        patience: Patience | None = None,
    ) -> None:
        """`path` is a file that holds how actions ended, across restarts of the agent; `running` are this node's own
        engines, each with its processes: a driver need not list them.
        """
        self._path, self._devices, self._running, self._on_change = path, devices, running, on_change
        self._reboot_command, self._clock, self._patience = tuple(reboot_command), clock, patience or Patience()
        self._wanted: list[DeviceAction] = []
        self._facts: dict[UUID, ActionFact] = {}
        self._wake = asyncio.Event()

    def load(self) -> None:
        """Take up what an earlier agent has done: it is not done again."""
        kept = read_file(self._path, _Kept)
        if kept is None:
            return
        self._facts = {fact.action_id: fact for fact in kept.ended}

    def set_wanted(self, rows: Sequence[DeviceAction]) -> None:
        """The whole of it, as just read from the web process."""
        self._wanted = list(rows)
        wanted = {row.action_id for row in rows}
        gone = [action_id for action_id in self._facts if action_id not in wanted]
        for action_id in gone:  # its end is kept, or it was replaced
            del self._facts[action_id]
        if gone:
            self._save()
        self._wake.set()

    def facts(self) -> list[ActionFact]:
        """How each stands that has begun."""
        return list(self._facts.values())

    async def run(self) -> None:
        """Carry out what is wanted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (row := self._next()) is not None:
                await self._carry_out(row)

    def _next(self) -> DeviceAction | None:
        return next((row for row in self._wanted if self._state(row) not in _ENDED), None)

    def _state(self, row: DeviceAction) -> str:
        fact = self._facts.get(row.action_id)
        return "" if fact is None else fact.state

    async def _carry_out(self, row: DeviceAction) -> None:
        log.warning("agent.action_begins", action=row.action, device=row.stable_id, dry_run=row.dry_run)
        self._tell(row, "running", "")
        try:
            outcome = await self._do(row)
        except CannotAct as error:
            self._tell(row, "failed", str(error))
        except ToolFailed as error:
            self._tell(row, "failed", str(error))
        except Exception as error:  # a defect here must not end the agent, which looks after the engines
            log.error("agent.action_broke", action=row.action, exc_info=error)
            self._tell(row, "failed", f"A defect of the agent ended it, see its log: {error!r}")
        else:
            self._tell(row, "dry_run" if row.dry_run else "done", outcome)
        log.warning("agent.action_ended", action=row.action, state=self._state(row))

    def _tell(self, row: DeviceAction, state: str, outcome: str) -> None:
        self._facts[row.action_id] = ActionFact(action_id=row.action_id, state=state, outcome=outcome[:1000])
        if state in _ENDED:
            self._save()
        self._on_change()

    def _save(self) -> None:
        ended = [fact for fact in self._facts.values() if fact.state in _ENDED]
        try:
            replace_file(self._path, msgspec.json.encode(_Kept(ended)))
        except OSError as error:
            log.error("agent.actions_not_saved", error=str(error))

    async def _do(self, row: DeviceAction) -> str:
        if row.action == LIMIT_POWER:
            return await self._limit_power(row)
        try:
            remedy = Remedy(row.action)
        except ValueError:
            raise CannotAct(f"This agent does not know the action {row.action}: install the release's.") from None
        if remedy in RESETS:
            return await self._reset(row)
        match remedy:
            case Remedy.REBOOT:
                return await self._reboot(row)
            case Remedy.END_PROCESSES:
                return await self._see_memory_return(row)
            case Remedy.CLEAR_CACHE:
                return await self._clear_cache(row)
            case _:
                raise CannotAct(f"{row.action} is nothing that an agent does.")

    # Each of them

    async def _reset(self, row: DeviceAction) -> str:
        device = self._device(row)
        if device.partition_of or not device.allocatable:
            raise CannotAct(f"{device.stable_id} is divided: a reset would end the work of all its parts.")
        if device.vendor != "nvidia":
            raise CannotAct(f"This agent cannot reset devices of {device.vendor}.")
        await self._until_empty(row)
        command = ("nvidia-smi", "--gpu-reset", "-i", device.facts.get("uuid") or device.stable_id)
        if row.dry_run:
            return f"Nothing holds it; it would run: {' '.join(command)}"
        await run_tool(command, seconds=self._patience.reset)
        await run_tool((*command[:1], "--query-gpu=uuid", "--format=csv,noheader", *command[2:]), seconds=60)
        return "It was reset, and answers."

    async def _reboot(self, row: DeviceAction) -> str:
        for device in self._devices():
            holder = next(iter(device.processes), None)
            if device.kind == "gpu" and holder is not None:
                raise CannotAct(f"Process {holder.pid} ({holder.name or 'unknown'}) uses {device.stable_id}.")
        for engine, _ in self._running():
            raise CannotAct(f"Instance {engine.instance_id} still runs on this node.")
        said = " ".join(self._reboot_command)
        if row.dry_run:
            return f"No process uses a GPU; it would run: {said}"
        self._tell(row, "running", f"It restarts: {said}")
        await asyncio.sleep(self._patience.notice)
        await run_tool(self._reboot_command, seconds=60)
        # The machine goes down by and by. That it came back is told by its next boot id, and by nothing else; the row
        # goes where nobody told so in time.
        while any(wanted.action_id == row.action_id for wanted in self._wanted):
            self._wake.clear()
            await self._wake.wait()
        raise CannotAct("The machine did not go down in time.")

    async def _see_memory_return(self, row: DeviceAction) -> str:
        """Our processes end by their instances' rows; here it is seen that they and their memory are gone."""
        last = "It cannot be seen what is in use there."
        async for device in self._watched(row):
            ours = self._ours_on(device)
            if ours:
                last = f"Our processes {', '.join(map(str, ours))} are still on it."
                continue
            if device.memory_used_bytes is None or any(p.memory_bytes is None for p in device.processes):
                continue
            others = sum(process.memory_bytes or 0 for process in device.processes)
            left = device.memory_used_bytes - others - int(device.telemetry.get("memory_reserved_bytes", 0))
            if left <= _MEMORY_SLACK_BYTES:
                return f"Nothing of ours is on it any more; {device.memory_used_bytes} bytes are others'."
            last = f"{left} bytes are in use there that no process owns: its memory has not returned."
        raise CannotAct(last)

    async def _clear_cache(self, row: DeviceAction) -> str:
        return f"{signal_listeners(self._ours_on(self._device(row)))} processes were asked to empty their caches."

    async def _limit_power(self, row: DeviceAction) -> str:
        """What runs on the device runs on, slower; the driver refuses what the device cannot be set to."""
        device = self._device(row)
        if device.vendor != "nvidia" or device.partition_of:
            raise CannotAct(f"{device.stable_id} has no power limit that this agent can set.")
        if row.watts is None:
            raise CannotAct("It was not said how many watts.")
        name = device.facts.get("uuid") or device.stable_id
        command = ("nvidia-smi", "-i", name, "--power-limit", str(row.watts))
        if row.dry_run:
            return f"It would run: {' '.join(command)}"
        await run_tool(command, seconds=60)
        return f"Its power limit is {row.watts} W until its node restarts."

    async def _until_empty(self, row: DeviceAction) -> None:
        """Raises CannotAct where a process, ours or not, does not leave the device in time."""
        last = ""
        async for device in self._watched(row):
            last = self._who_holds(device)
            if not last:
                return
        raise CannotAct(last)

    def _who_holds(self, device: Device) -> str:
        """By what its driver lists and by what runs here, in a sentence; empty where nobody does."""
        for holder in device.processes:
            return f"Process {holder.pid} ({holder.name or 'unknown'}) still holds it."
        for engine, _ in self._running():
            if device.stable_id in engine.device_ids:
                return f"Instance {engine.instance_id} still runs on it."
        return ""

    def _ours_on(self, device: Device) -> list[int]:
        """Processes of our engines, of those that its driver lists."""
        ours = {pid for _, pids in self._running() for pid in pids}
        return [process.pid for process in device.processes if process.pid in ours]

    async def _watched(self, row: DeviceAction) -> AsyncIterator[Device]:
        """The device as it is seen now, again and again while there is patience for processes that are ending."""
        begun = self._clock.monotonic()
        while True:
            yield self._device(row)
            if self._clock.monotonic() - begun >= self._patience.holders:
                return
            await asyncio.sleep(self._patience.poll)

    def _device(self, row: DeviceAction) -> Device:
        for device in self._devices():
            if device.stable_id == row.stable_id:
                return device
        raise CannotAct(f"This node has no device {row.stable_id} now.")

"""Looks now and then whether running instances are still isolated as asked, and still see their devices."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog

from core.clock import Clock
from gpupool.agent.isolation.nodes import NodesUnknown, device_nodes
from gpupool.discovery.base import Noticed
from gpupool.discovery.tools import CODE_ROOT, ToolAway, ToolFailed, ask
from gpupool.engines.base import GivenDevice
from gpupool.policies.isolation import IsolationRefused, parse_isolation, too_many_clients
from gpupool.stream.messages import DesiredInstance

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 30.0
CLIENTS: Final = "mps_clients"
UNSEEN: Final = "unseen"
"""Kinds of events: more processes under MPS than were asked for; an instance does not see its device any more."""

_DEADLINE_SECONDS: Final = 5.0

Running = Iterable[tuple[DesiredInstance, Sequence[int]]]
Sight = Callable[[int, Sequence[str]], Awaitable[dict[str, str]]]
"""Which of the nodes a process does not see, with why."""


class IsolationWatch:
    """Says each trouble once, and again when it has come back."""

    def __init__(
        self,
        *,
        running: Callable[[], Running],
        devices: Callable[[], Mapping[str, GivenDevice]],
        device_use: Callable[[str], Mapping[int, int | None] | None],
        cdi_specs: Callable[[], Sequence[Mapping[str, Any]]],
        notice: Callable[[Noticed], None],
        clock: Clock,
        sight: Sight | None = None,
        root: Path = Path("/"),
    ) -> None:
        """`device_use` says how much of a device each process has."""
        self._running, self._devices, self._device_use = running, devices, device_use
        self._cdi_specs, self._notice, self._clock = cdi_specs, notice, clock
        self._sight, self._root = sight or look_in_child, root
        self._said: set[tuple[UUID, str, str]] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:  # what cannot be looked at now must not end the agent, which serves on
                log.error("agent.isolation_not_watched", exc_info=error)

    async def look(self) -> None:
        """Once."""
        troubles: dict[tuple[UUID, str, str], str] = {}
        for row, pids in list(self._running()):
            for device, why in self._over_clients(row, pids).items():
                troubles[row.instance_id, CLIENTS, device] = why
            for device, why in (await self._unseen(row, pids)).items():
                troubles[row.instance_id, UNSEEN, device] = why
        for (instance_id, kind, device), why in troubles.items():
            if (instance_id, kind, device) not in self._said:
                self._tell(instance_id, kind, device, why)
        self._said = set(troubles)

    def _over_clients(self, row: DesiredInstance, pids: Sequence[int]) -> dict[str, str]:
        try:
            asked = parse_isolation(row.isolation)
        except IsolationRefused:
            return {}
        found: dict[str, str] = {}
        for device in row.device_ids if asked.mps else ():
            clients = set(pids) & set(self._device_use(device) or ())
            if (why := too_many_clients(asked, processes=len(clients))) is not None:
                found[device] = why
        return found

    async def _unseen(self, row: DesiredInstance, pids: Sequence[int]) -> dict[str, str]:
        found: dict[str, str] = {}
        given = self._devices()
        for device_id in row.device_ids if pids else ():
            device = given.get(device_id)
            if device is None:
                continue
            try:
                nodes = device_nodes([device], specs=self._cdi_specs(), root=self._root)
            except NodesUnknown:
                continue
            if nodes and (missing := await self._sight(pids[0], nodes)):
                node, why = next(iter(missing.items()))
                found[device_id] = f"The instance cannot open {node} any more: {why}."
        return found

    def _tell(self, instance_id: UUID, kind: str, device: str, why: str) -> None:
        at = self._clock.now().timestamp()
        data = {"instance_id": str(instance_id)}
        self._notice(Noticed(source="agent", kind=kind, at=at, stable_id=device, text=why, data=data))


async def look_in_child(pid: int, nodes: Sequence[str]) -> dict[str, str]:
    """In a child with a deadline: opening a device of a driver that hangs does not return."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(CODE_ROOT)}
    argv = (sys.executable, "-m", "gpupool.agent.isolation.sight", str(pid), *nodes)
    try:
        said = (await ask(argv, env=env, seconds=_DEADLINE_SECONDS)).text
    except ToolAway:
        return {nodes[-1]: f"its driver did not answer within {_DEADLINE_SECONDS:g} s"}
    except ToolFailed:
        return {}
    try:
        return msgspec.json.decode(said, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}  # the process has ended, or the child was not started whole: nothing is known

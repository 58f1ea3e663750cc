"""The node agent: sole arbiter of its devices. Puts discovery, supervisor and link together; no database."""

import asyncio
import contextlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from core.clock import Clock, SystemClock
from gpupool.agent.life import Timings
from gpupool.agent.link import Link, stream_url
from gpupool.agent.ports import PortRange
from gpupool.agent.processes import boot_id
from gpupool.agent.state import StateDir
from gpupool.agent.supervisor import Supervisor
from gpupool.discovery.base import Device, DeviceSource, Inventory
from gpupool.discovery.host import cpu_model
from gpupool.engines.base import GivenDevice
from gpupool.stream.messages import PROTOCOL, Desired, DeviceFact, Hello, Observed

log = structlog.get_logger(__name__)

AGENT_VERSION: Final = "0.1.0"
_TELEMETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What one agent needs to know."""

    node: str
    token: str
    web_url: str
    var_dir: Path
    port_first: int
    port_count: int
    stop_engines_on_exit: bool = False
    first_look_seconds: float = 15.0  # loading a GPU driver takes seconds; the first report waits for it so long
    timings: Timings = field(default_factory=Timings)


class NodeAgent:
    """One node's agent."""

    def __init__(self, settings: NodeSettings, sources: Sequence[DeviceSource], *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._sources = sources
        self._inventories: dict[int, Inventory] = {}
        self._changed = asyncio.Event()
        self._state = StateDir(settings.var_dir / "agent" / settings.node)
        self._supervisor = Supervisor(
            state=self._state,
            log_dir=settings.var_dir / "log",
            ports=PortRange(settings.port_first, settings.port_count),
            clock=clock or SystemClock(),
            devices=self._given_devices,
            device_bytes=self._device_bytes,
            on_change=self._changed.set,
            timings=settings.timings,
        )
        self._link = Link(
            url=stream_url(settings.web_url),
            token=settings.token,
            hello=self._hello,
            observed=self._observed,
            on_desired=self._on_desired,
            on_lost=self._supervisor.set_disconnected,
            changed=self._changed,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises NodeRefused, AgentAlreadyRuns or OSError.

        Engines keep running afterwards, unless the settings say to stop them.
        """
        self._state.open()
        tasks: list[asyncio.Task[None]] = []
        try:
            looks = [asyncio.Event() for _ in self._sources]
            for number, source in enumerate(self._sources):
                tasks.append(asyncio.create_task(self._keep_looking(number, source, looks[number])))
            await self._supervisor.adopt()
            supervising = asyncio.create_task(self._supervisor.run())
            stopping = asyncio.create_task(_wait(stop))
            tasks += [supervising, stopping, asyncio.create_task(self._speak(looks))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
            if self._settings.stop_engines_on_exit:
                await self._supervisor.stop_all()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for source in self._sources:
                await source.close()
            self._state.close()

    async def _speak(self, looks: Sequence[asyncio.Event]) -> None:
        """Talk to the web process once every source has looked, or is too slow to be waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.first_look_seconds):
                for look in looks:
                    await look.wait()
        await self._link.run()

    async def _keep_looking(self, number: int, source: DeviceSource, looked: asyncio.Event) -> None:
        """Each source at its own pace: a driver that hangs must not make the others' numbers old."""
        while True:
            before = {device.stable_id for device in self._devices()}
            self._inventories[number] = await source.probe()
            looked.set()
            if {device.stable_id for device in self._devices()} != before:
                self._changed.set()
            await asyncio.sleep(_TELEMETRY_SECONDS)

    def _devices(self) -> list[Device]:
        return [device for _, inventory in sorted(self._inventories.items()) for device in inventory.devices]

    def _given_devices(self) -> Mapping[str, GivenDevice]:
        return {
            device.stable_id: GivenDevice(device.stable_id, device.kind, device.vendor, device.memory_bytes)
            for device in self._devices()
        }

    def _device_bytes(self, stable_id: str) -> int | None:
        return next((device.memory_bytes for device in self._devices() if device.stable_id == stable_id), None)

    def _on_desired(self, desired: Desired) -> None:
        self._supervisor.set_desired(desired.instances)

    def _hello(self) -> Hello:
        facts = {"os": platform.system(), "kernel": platform.release(), "cpu": cpu_model()}
        reasons = [inventory.reason for inventory in self._inventories.values() if inventory.reason]
        if reasons and not any(device.kind == "gpu" for device in self._devices()):
            facts["no_gpu_reason"] = " ".join(reasons)
        return Hello(
            protocol=PROTOCOL,
            node=self._settings.node,
            boot_id=boot_id(),
            agent_version=AGENT_VERSION,
            address="127.0.0.1",
            facts=facts,
            devices=self._device_facts(),
            instances=self._supervisor.facts(),
        )

    def _observed(self, sequence: int) -> Observed:
        return Observed(
            sequence=sequence,
            devices=self._device_facts(),
            instances=self._supervisor.facts(),
            load=self._supervisor.loads(),
        )

    def _device_facts(self) -> list[DeviceFact]:
        engines = self._supervisor.memory_by_device()
        facts = []
        for device in self._devices():
            if device.kind == "cpu":
                # What the host's other programs use is no part of the claimable share: engines' own use is shown.
                device = msgspec.structs.replace(device, memory_used_bytes=engines.get(device.stable_id, 0))
            facts.append(_device_fact(device))
        return facts


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _device_fact(device: Device) -> DeviceFact:
    return DeviceFact(
        stable_id=device.stable_id,
        kind=device.kind,
        vendor=device.vendor,
        name=device.name,
        index=device.index,
        memory_bytes=device.memory_bytes,
        memory_used_bytes=device.memory_used_bytes,
        utilization=device.utilization,
        temperature_celsius=device.temperature_celsius,
        health=device.health,
        facts=dict(device.facts),
        traceable_id=device.traceable_id,
        allocatable=device.allocatable,
        partition_of=device.partition_of,
        tags=list(device.tags),
        regions=[msgspec.to_builtins(region) for region in device.regions],
        capability=msgspec.to_builtins(device.capability),
        links=[msgspec.to_builtins(link) for link in device.links],
        processes=[msgspec.to_builtins(process) for process in device.processes],
        telemetry=dict(device.telemetry),
    )

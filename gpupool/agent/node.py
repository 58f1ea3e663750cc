"""The node agent: sole arbiter of its devices. Puts discovery, supervisor and link together; no database."""

import asyncio
import contextlib
import ipaddress
import platform
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from core.clock import Clock, SystemClock
from gpupool.agent.ability import Ability
from gpupool.agent.actions import ActionRunner
from gpupool.agent.devices import device_at, merge
from gpupool.agent.events import EventBuffer
from gpupool.agent.facts import device_facts, given_device
from gpupool.agent.isolation.launcher import Isolator
from gpupool.agent.isolation.watch import IsolationWatch
from gpupool.agent.kernel_log import KernelLogSource
from gpupool.agent.known import KnownDevices
from gpupool.agent.launcher import Launcher
from gpupool.agent.link import Link, stream_url
from gpupool.agent.log_tail import LogTails
from gpupool.agent.ports import PortRange
from gpupool.agent.processes import boot_id
from gpupool.agent.state import StateDir
from gpupool.agent.supervisor import Supervisor
from gpupool.agent.twins import Sighting, Twins
from gpupool.agent.workshop import Timings
from gpupool.discovery.base import Device, DeviceSource, Inventory, Noticed
from gpupool.discovery.host import cpu_model
from gpupool.discovery.reading import stale
from gpupool.engines.base import GivenDevice
from gpupool.policies.oom_guard import Rules as GuardRules
from gpupool.policies.tenant_switch import switch_key, token_digest
from gpupool.stream.messages import PROTOCOL, Desired, DeviceFact, Hello, Observed

log = structlog.get_logger(__name__)

AGENT_VERSION: Final = "0.1.0"
_TELEMETRY_SECONDS: Final = 1.0
_ABILITY_SECONDS: Final = 300.0


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
    address: str = "127.0.0.1"  # where engines of this node can be reached
    kernel_log: Path | None = None  # what tells of errors beside the drivers; None: it is not read
    tls: ssl.SSLContext | None = None  # for a web process that is spoken to by https
    first_look_seconds: float = 15.0  # loading a GPU driver takes seconds; the first report waits for it so long
    simulated: bool = False  # its devices are made up: that is told, and this machine is not looked at for what it can
    boot_id: str = ""  # of a simulated node; a real one has its machine's
    timings: Timings = field(default_factory=Timings)
    guard_rules: GuardRules = field(default_factory=GuardRules)
    reboot_command: tuple[str, ...] = ("systemctl", "reboot")


class NodeAgent:
    """One node's agent."""

    def __init__(
        self,
        settings: NodeSettings,
        sources: Sequence[DeviceSource],
        *,
        clock: Clock | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self._settings = settings
        self._boot_id = settings.boot_id or boot_id()
        self._clock = clock or SystemClock()
        self._state = StateDir(settings.var_dir / "agent" / settings.node)
        self._kernel_log = self._make_kernel_log()
        self._sources = [*sources, *([self._kernel_log] if self._kernel_log is not None else [])]
        self._inventories: dict[int, Inventory] = {}
        self._known = KnownDevices(self._state.path / "devices.json", boot_id=self._boot_id)
        self._merged: list[Device] = []
        self._changed = asyncio.Event()
        self._events = EventBuffer(self._state.path / "events.json", boot_id=self._boot_id)
        self._twins = Twins()
        self._unnumbered: list[Noticed] = []
        self._looked = False  # every source has looked, or was too slow: what was noticed can be given its device
        self._ability = Ability()
        self._logs = LogTails(settings.var_dir / "log", self._clock)
        self._supervisor = Supervisor(
            state=self._state,
            log_dir=settings.var_dir / "log",
            ports=PortRange(settings.port_first, settings.port_count),
            clock=self._clock,
            devices=self._given_devices,
            device_bytes=self._device_bytes,
            device_use=self._device_use,
            switch_key=switch_key(token_digest(settings.token)),
            isolator=Isolator(
                work_dir=settings.var_dir / "work",
                capabilities=lambda: self._ability.record,
                cdi_specs=lambda: self._ability.cdi_specs,
            ),
            launcher=launcher,
            host=bind_host(settings.address),
            notice=self.notice,
            on_change=self._changed.set,
            timings=settings.timings,
            guard_rules=settings.guard_rules,
        )
        self._actions = ActionRunner(
            path=self._state.path / "actions.json",
            devices=self._devices,
            running=self._supervisor.running,
            on_change=self._changed.set,
            reboot_command=settings.reboot_command,
            clock=self._clock,
        )
        self._watch = IsolationWatch(
            running=self._supervisor.running,
            devices=self._given_devices,
            device_use=self._device_use,
            cdi_specs=lambda: self._ability.cdi_specs,
            notice=self.notice,
            clock=self._clock,
        )
        self._link = Link(
            url=stream_url(settings.web_url),
            token=settings.token,
            hello=self._hello,
            observed=self._observed,
            on_desired=self._on_desired,
            on_lost=self._supervisor.set_disconnected,
            changed=self._changed,
            tls=settings.tls,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises NodeRefused, AgentAlreadyRuns or OSError.

        Engines keep running afterwards, unless the settings say to stop them.
        """
        self._state.open()
        self._events.load()
        self._actions.load()
        self._known.load()
        tasks: list[asyncio.Task[None]] = []
        try:
            looks = [asyncio.Event() for _ in self._sources]
            for number, source in enumerate(self._sources):
                tasks.append(asyncio.create_task(self._keep_looking(number, source, looks[number])))
            await self._supervisor.adopt()
            supervising = asyncio.create_task(self._supervisor.run())
            stopping = asyncio.create_task(_wait(stop))
            work = (self._speak(looks), self._keep_telling(), self._keep_able(), self._watch.run())
            tasks += [supervising, stopping, *map(asyncio.create_task, (*work, self._actions.run()))]
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
        self._looked = True
        self._number_noticed()
        if not self._settings.simulated:
            await self._ability.look(self._merged)
        await self._link.run()

    async def _keep_looking(self, number: int, source: DeviceSource, looked: asyncio.Event) -> None:
        """Each source at its own pace: a driver that hangs must not make the others' numbers old."""
        name = f"{number} {type(source).__name__}"
        self._take(number, Inventory(self._known.recall(name)))
        while True:
            inventory = await self._look(number, source)
            if inventory.devices:
                self._known.keep(name, inventory.devices)
            elif inventory.reason:
                inventory = msgspec.structs.replace(inventory, devices=self._known.recall(name))
            self._take(number, inventory)
            looked.set()
            self.notice(*inventory.noticed)
            await asyncio.sleep(_TELEMETRY_SECONDS)

    def _take(self, number: int, inventory: Inventory) -> None:
        before = {device.stable_id for device in self._merged}
        self._inventories[number] = inventory
        self._merged = merge(inventory for _, inventory in sorted(self._inventories.items()))
        if {device.stable_id for device in self._merged} != before:
            self._changed.set()

    async def _look(self, number: int, source: DeviceSource) -> Inventory:
        """What it finds. Where its code fails, what it found before is known no better than if it had not answered."""
        try:
            return await source.probe()
        except Exception as error:  # nothing that one driver or tool says may end the agent
            before = self._inventories.get(number, Inventory())
            reason = f"{type(source).__name__} failed with {type(error).__name__}: see the agent's log."
            if before.reason != reason:
                log.exception("agent.source_failed", source=type(source).__name__)
            return Inventory(tuple(stale(device, "unknown") for device in before.devices), reason)

    async def _keep_telling(self) -> None:
        """Report every second in which a reading changed: sources look at moments of their own."""
        while True:
            told = self._merged
            await asyncio.sleep(_TELEMETRY_SECONDS)
            if self._merged != told:
                self._changed.set()

    async def _keep_able(self) -> None:
        """Look again now and then what this node can isolate by: daemons and specifications come and go."""
        while True:
            await asyncio.sleep(_ABILITY_SECONDS)
            if not self._settings.simulated and await self._ability.look(self._merged):
                self._changed.set()

    def notice(self, *noticed: Noticed) -> None:
        """Tell the web process of something that happened, now or when it is back."""
        self._unnumbered += noticed
        if self._looked:
            self._number_noticed()

    def _number_noticed(self) -> None:
        placed = [self._placed(one) for one in self._unnumbered]
        self._unnumbered = []
        if self._events.add(one for one in placed if not self._is_second(one)):
            self._changed.set()

    def _placed(self, noticed: Noticed) -> Noticed:
        """With the stable id of the device, where its source knows an address only."""
        if noticed.stable_id or not noticed.pci_address:
            return noticed
        return msgspec.structs.replace(noticed, stable_id=device_at(self._merged, noticed.pci_address))

    def _is_second(self, noticed: Noticed) -> bool:
        """The driver and the kernel's log both tell of an error: it is one."""
        device = noticed.stable_id or noticed.pci_address
        if noticed.kind != "xid" or noticed.code is None or not device:
            return False
        return self._twins.is_second(Sighting(noticed.source, device, noticed.code, noticed.at))

    def _make_kernel_log(self) -> KernelLogSource | None:
        if self._settings.kernel_log is None:
            return None
        place = self._state.path / "kernel_log.json"
        return KernelLogSource(place, boot_id=boot_id(), clock=self._clock, path=self._settings.kernel_log)

    def _devices(self) -> list[Device]:
        return self._merged

    def _given_devices(self) -> Mapping[str, GivenDevice]:
        return {device.stable_id: given_device(device) for device in self._merged}

    def _device_bytes(self, stable_id: str) -> int | None:
        return next((device.memory_bytes for device in self._merged if device.stable_id == stable_id), None)

    def _device_use(self, stable_id: str) -> dict[int, int | None] | None:
        """Bytes of a device by the process that has them; None for one that does not list them."""
        device = next((device for device in self._devices() if device.stable_id == stable_id), None)
        if device is None or device.kind == "cpu":
            return None
        return {process.pid: process.memory_bytes for process in device.processes}

    def _on_desired(self, desired: Desired) -> None:
        self._supervisor.set_desired(desired.instances)
        actions = desired.actions
        if self._settings.simulated:
            # A reboot or reset of what is made up would be one of the machine that the simulation runs on.
            actions = [msgspec.structs.replace(action, dry_run=True) for action in actions]
        self._actions.set_wanted(actions)
        news = self._logs.set_wanted(desired.logs)
        if self._events.acknowledge(desired.event_sequence) or news:
            self._changed.set()

    def _hello(self) -> Hello:
        self._events.retell()
        facts = _made_up_facts() if self._settings.simulated else _machine_facts()
        reasons = [inventory.reason for inventory in self._inventories.values() if inventory.reason]
        if reasons and not any(device.kind == "gpu" for device in self._devices()):
            facts["no_gpu_reason"] = " ".join(reasons)
        if self._kernel_log is not None and self._kernel_log.away:
            facts["kernel_log"] = self._kernel_log.away
        return Hello(
            protocol=PROTOCOL,
            node=self._settings.node,
            boot_id=self._boot_id,
            agent_version=AGENT_VERSION,
            address=self._settings.address,
            facts=facts,
            devices=self._device_facts(),
            instances=self._supervisor.facts(),
            capabilities=self._ability.told(),
            simulated=self._settings.simulated,
        )

    def _observed(self, sequence: int) -> Observed:
        return Observed(
            sequence=sequence,
            devices=self._device_facts(),
            instances=self._supervisor.facts(),
            load=self._supervisor.loads(),
            actions=self._actions.facts(),
            events=self._events.to_tell(now=self._clock.monotonic()),
            capabilities=self._ability.told_if_new(),
            logs=self._logs.to_tell(),
        )

    def _device_facts(self) -> list[DeviceFact]:
        engines, owners = self._supervisor.memory_by_device(), self._supervisor.owners()
        devices = []
        for device in self._devices():
            if device.kind == "cpu":
                # What the host's other programs use is no part of the claimable share: engines' own use is shown.
                device = msgspec.structs.replace(device, memory_used_bytes=engines.get(device.stable_id, 0))
            devices.append(device)
        return device_facts(devices, owners)


def _machine_facts() -> dict[str, str]:
    return {"os": platform.system(), "kernel": platform.release(), "cpu": cpu_model()}


def _made_up_facts() -> dict[str, str]:
    """Not those of the machine that the simulation runs on."""
    return dict.fromkeys(("os", "kernel", "cpu"), "simulated")


def bind_host(address: str) -> str:
    """What engines listen on, so that they can be reached at the node's address and by this agent on loopback.

    Raises ValueError for a loopback address that is neither.
    """
    if address in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "0.0.0.0"  # noqa: S104  # a name, which the operator gave
    if ip.is_loopback:
        raise ValueError(f"GATEHOUSE_NODE_ADDRESS={address!r} is reached by nobody: use 127.0.0.1, or the node's own.")
    return "::" if ip.version == 6 else "0.0.0.0"  # noqa: S104  # the operator gave an address


async def _wait(event: asyncio.Event) -> None:
    await event.wait()

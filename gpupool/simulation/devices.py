"""The devices of a simulated node: figures that follow what its engines do, and errors now and then."""

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpupool.discovery.base import Device, DeviceProcess, Inventory, Link, LinkType, Noticed
from gpupool.discovery.memory_classes import gpu_regions
from gpupool.simulation.kinds import Kind
from gpupool.simulation.launcher import SimulatedProcess

_NAMESPACE: Final = uuid.UUID("6f1d1c66-52c5-4e0f-9f53-7b6f9c2c1a55")
_HOST_BYTES: Final = 512 << 30
_DRIVER_BYTES: Final = 400 << 20
_FAILED_SECONDS: Final = 60.0
_LARGEST_STEP_SECONDS: Final = 10.0

XIDS: Final[Mapping[int, str]] = {
    13: "Graphics Engine Exception",
    31: "MMU Fault: ENGINE GRAPHICS",
    43: "Reset Channel Verif Error",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate",
    79: "GPU has fallen off the bus",
    94: "Contained: CE User Channel. RST: No, D-RST: No",
}
_WEIGHTS: Final = (30, 30, 20, 8, 4, 8)


@dataclass(slots=True)
class _Errors:
    """What a GPU has gone through."""

    uncorrected: int = 0
    remapped: int = 0
    failed_until: float = 0.0


@dataclass(slots=True)
class _Gpu:
    uuid: str
    pci_address: str
    errors: _Errors = field(default_factory=_Errors)
    heat: float = 30.0


class SimulatedDevices:
    """A device source without devices."""

    def __init__(
        self,
        *,
        node: str,
        kind: Kind,
        count: int,
        running: Callable[[], list[SimulatedProcess]],
        chance: random.Random,
        xids_an_hour: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`xids_an_hour` is of each GPU."""
        self._node = node
        self._kind = kind
        self._running = running
        self._chance = chance
        self._xids_an_hour = xids_an_hour
        self._monotonic = monotonic
        self._wall = wall
        self._looked_at: float | None = None
        self._node_id = uuid.uuid5(_NAMESPACE, node)
        self._gpus = [_Gpu(self._gpu_id(at), f"0000:{0x17 + 4 * at:02x}:00.0") for at in range(count)]

    def _gpu_id(self, at: int) -> str:
        return f"GPU-{uuid.uuid5(self._node_id, f'gpu{at}')}"

    async def probe(self) -> Inventory:
        now = self._monotonic()
        passed = 0.0 if self._looked_at is None else min(_LARGEST_STEP_SECONDS, now - self._looked_at)
        self._looked_at = now
        noticed = [event for gpu in self._gpus if (event := self._happen(gpu, passed, now)) is not None]
        engines = self._running()
        gpus = tuple(self._gpu(at, gpu, engines, now) for at, gpu in enumerate(self._gpus))
        return Inventory((self._host(), *gpus), noticed=tuple(noticed))

    async def close(self) -> None:
        return None

    def _host(self) -> Device:
        return Device(
            stable_id=f"cpu-{self._node_id}",
            kind="cpu",
            vendor="host",
            name="Simulated host, 128 cores",
            index=0,
            memory_bytes=_HOST_BYTES,
            utilization=round(self._chance.uniform(0.02, 0.1), 3),
            facts={"cores": "128", "simulated": "true"},
        )

    def _gpu(self, at: int, gpu: _Gpu, engines: list[SimulatedProcess], now: float) -> Device:
        kind = self._kind
        failed = now < gpu.errors.failed_until
        mine = [engine for engine in engines if gpu.uuid in engine.device_ids]
        used = min(kind.memory_bytes, _DRIVER_BYTES + sum(engine.double.device_bytes for engine in mine))
        busy = min(1.0, sum((engine.double.busy for engine in mine), 0.0))
        gpu.heat += 0.1 * (30 + 45 * busy - gpu.heat)
        facts = {"simulated": "true", "pci_address": gpu.pci_address}
        return Device(
            stable_id=gpu.uuid,
            kind="gpu",
            vendor=kind.vendor,
            name=kind.name,
            index=at,
            memory_bytes=kind.memory_bytes,
            memory_used_bytes=None if failed else used,
            utilization=None if failed else round(busy, 3),
            temperature_celsius=None if failed else round(gpu.heat, 1),
            health="failed" if failed else "ok",
            facts=facts | ({"trouble": "GPU_IS_LOST"} if failed else {}),
            traceable_id=f"{kind.name.replace(' ', '_')}_{gpu.pci_address}_{self._node_id.hex[:8]}",
            pci_address=gpu.pci_address,
            numa_node=at * 2 // max(1, len(self._gpus)),
            recovery_action="reset" if failed else "none",
            tags=kind.placement_tags(),
            regions=gpu_regions(kind.name, kind.memory_bytes, _HOST_BYTES),
            capability=kind.capability(),
            links=self._links(at),
            processes=tuple(
                DeviceProcess(pid=engine.pid, name="simulated", memory_bytes=engine.double.device_bytes)
                for engine in mine
            ),
            telemetry={} if failed else self._telemetry(gpu, busy),
        )

    def _telemetry(self, gpu: _Gpu, busy: float) -> dict[str, float]:
        kind = self._kind
        watts = kind.idle_watts + (kind.power_watts - kind.idle_watts) * 0.9 * busy
        return {
            "power_watts": round(watts + self._chance.uniform(-2, 2), 1),
            "power_limit_watts": kind.power_watts,
            "sm_clock_mhz": float(kind.sm_mhz if busy else kind.sm_mhz // 6),
            "sm_active": round(busy * 0.8, 3),
            "memory_utilization": round(busy * 0.5, 3),
            "ecc_corrected": 0.0,
            "ecc_uncorrected": float(gpu.errors.uncorrected),
            "remapped_rows_correctable": float(gpu.errors.remapped),
            "remapped_rows_uncorrectable": 0.0,
            "remap_pending": float(gpu.errors.remapped > 0),
            "remap_failed": 0.0,
            "throttled": 0.0,
        }

    def _links(self, at: int) -> tuple[Link, ...]:
        kind, others = self._kind, [n for n in range(len(self._gpus)) if n != at]
        if kind.link is LinkType.NVSWITCH and others:
            hub = f"nvswitch-{self._node_id.hex[:8]}"
            return (Link(peer=hub, kind=LinkType.NVSWITCH, lanes=kind.lanes, bandwidth_bytes=kind.link_bytes),)
        if kind.link is not None:
            return tuple(
                Link(peer=self._gpus[n].uuid, kind=kind.link, lanes=kind.lanes, bandwidth_bytes=kind.link_bytes)
                for n in others
            )
        half = len(self._gpus) / 2
        return tuple(
            Link(peer=self._gpus[n].uuid, kind=LinkType.NUMA if (n < half) == (at < half) else LinkType.SYSTEM)
            for n in others
        )

    def _happen(self, gpu: _Gpu, passed: float, now: float) -> Noticed | None:
        """An error of the GPU, where it is its turn."""
        if self._chance.random() >= self._xids_an_hour * passed / 3600:
            return None
        (code,) = self._chance.choices(list(XIDS), _WEIGHTS)
        if code == 63:
            gpu.errors.remapped += 1
        elif code == 94:
            gpu.errors.uncorrected += 1
        elif code == 79:
            gpu.errors.failed_until = now + _FAILED_SECONDS
        return Noticed(
            source="nvml" if self._kind.vendor == "nvidia" else "agent",
            kind="xid",
            at=self._wall(),
            stable_id=gpu.uuid,
            pci_address=gpu.pci_address,
            code=code,
            text=f"{XIDS[code]} (simulated)",
            data={"simulated": "true"},
        )

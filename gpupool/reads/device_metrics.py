"""What Prometheus is told of devices: memory by model, and readings under DCGM's names and in its units.

Read when it is scraped, at most once a second: agents report each second. Labels are bounded by what the catalogue and
the inventory hold.
"""

import threading
import time
from collections.abc import Iterator
from typing import Final

from django.db import Error
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpupool.models import Device, Instance, InstanceState
from gpupool.policies.silence import is_silent

FRESH_SECONDS: Final = 1.0
_MIB: Final = 1 << 20
_DEVICE: Final = ("device", "node", "name", "simulated")  # the last is "true", or empty, which is as no label
_HEALTHS: Final = ("ok", "failed", "unknown")
_UNTOLD: Final = ("regions", "capability", "links", "tags", "facts", "node__capabilities", "node__facts")
"""Most of what is known of a device; no sample has any of it."""

_READINGS: Final = (
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw, watts.", "power_watts", 1.0),
    ("DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors, MHz.", "sm_clock_mhz", 1.0),
    ("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory, MHz.", "memory_clock_mhz", 1.0),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "Use of the memory's bandwidth, percent.", "memory_utilization", 100.0),
    ("DCGM_FI_PROF_SM_ACTIVE", "Share of the time in which a multiprocessor had work, 0 to 1.", "sm_active", 1.0),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.",
     "remapped_rows_uncorrectable", 1.0),
)  # fmt: skip


class DeviceCollector(Collector):
    """All GPUs; what is not known has no sample, and of one that is silent nothing that it told last is known."""

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: to be registered, it need not be asked, which would read the database."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gpus = Device.objects.filter(kind="gpu", present=True).select_related("node").defer(*_UNTOLD)
        devices, now = list(gpus.order_by("pk")), timezone.now()
        for device in devices:
            if is_silent(device.node.state, device.observed_at, now=now):
                _forget(device)
        yield _by_model(devices)
        temperature = GaugeMetricFamily("DCGM_FI_DEV_GPU_TEMP", "Temperature, degrees Celsius.", labels=_DEVICE)
        use = GaugeMetricFamily("DCGM_FI_DEV_GPU_UTIL", "Utilisation, percent.", labels=_DEVICE)
        used = GaugeMetricFamily("DCGM_FI_DEV_FB_USED", "Memory in use, MiB.", labels=_DEVICE)
        health = GaugeMetricFamily(
            "gatehouse_device_health", "1 for the health that a device has now.", labels=(*_DEVICE, "health")
        )
        out = GaugeMetricFamily("gatehouse_device_isolated", "1 while a device is taken out.", labels=_DEVICE)
        for device in devices:
            labels = _labels(device)
            _add(temperature, labels, device.temperature_celsius)
            _add(use, labels, None if device.utilization is None else device.utilization * 100)
            _add(used, labels, None if device.memory_used_bytes is None else device.memory_used_bytes / _MIB)
            _add(out, labels, float(device.isolated_at is not None))
            for state in _HEALTHS:
                _add(health, (*labels, state), float(device.health == state))
        yield from (temperature, use, used, health, out)
        for name, meaning, reading, factor in _READINGS:
            family = GaugeMetricFamily(name, meaning, labels=_DEVICE)
            for device in devices:
                value = device.telemetry.get(reading)
                _add(family, _labels(device), None if value is None else float(value) * factor)
            yield family


def _by_model(devices: list[Device]) -> GaugeMetricFamily:
    """Summed over a model's instances on a device, by the processes that their agents say are theirs."""
    family = GaugeMetricFamily(
        "model_gpu_memory_bytes",
        "Memory of a device that a model's instances use, bytes.",
        labels=("model", "device", "simulated"),
    )
    rows = Instance.objects.exclude(state=InstanceState.STOPPED).values_list("pk", "version__model__name")
    models: dict[str, str] = {str(pk): name for pk, name in rows}
    for device in devices:
        sums: dict[str, int] = {}
        for process in device.processes:
            model, size = models.get(str(process.get("instance_id"))), process.get("memory_bytes")
            if model is not None and size is not None:
                sums[model] = sums.get(model, 0) + int(size)
        for model, total in sorted(sums.items()):
            family.add_metric([model, device.stable_id, _made_up(device)], total)
    return family


def _forget(device: Device) -> None:
    """Of the row that was read, not of the table."""
    device.memory_used_bytes = device.utilization = device.temperature_celsius = None
    device.telemetry, device.processes, device.health = {}, [], "unknown"


def _labels(device: Device) -> tuple[str, ...]:
    return device.stable_id, device.node.name, device.name, _made_up(device)


def _made_up(device: Device) -> str:
    """Boards and alarms leave out `simulated="true"`: nothing of it comes from a device."""
    return "true" if device.simulated else ""


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(list(labels), value)


_registry: Final = CollectorRegistry(auto_describe=False)
_registry.register(DeviceCollector())
_lock: Final = threading.Lock()
_newest: tuple[float, bytes] = (float("-inf"), b"")


def render_device_metrics() -> bytes:
    """The exposition of all devices; empty while the database is away."""
    global _newest
    with _lock:
        at, text = _newest
        now = time.monotonic()
        if now - at >= FRESH_SECONDS:
            try:
                text = generate_latest(_registry)
            except Error:
                text = b""
            _newest = (now, text)
        return text

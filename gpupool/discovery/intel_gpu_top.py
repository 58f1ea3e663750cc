"""What `intel_gpu_top -J` prints of one GPU: how busy its engines are, its clock and power, and who uses it."""

from collections.abc import Mapping

from gpupool.discovery.base import DeviceProcess
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import at, json_in, mappings, number, share, size_bytes, whole, words


def reading(text: str) -> Reading | None:
    """Of the last whole sample, for the first one measures nothing. None where there is none."""
    samples = [sample for sample in mappings(json_in(text)) if isinstance(sample.get("engines"), Mapping)]
    if not samples:
        return None
    sample = samples[-1]
    found = Reading(vendor="intel")
    engines = sample["engines"]
    assert isinstance(engines, Mapping)  # chosen so above
    busy = [value for engine in engines.values() if (value := share(at(engine, "busy"))) is not None]
    found.utilization = max(busy, default=None)
    measured = {
        "sm_clock_mhz": number(at(sample, "frequency", "actual")),
        "power_watts": number(at(sample, "power", "GPU")),
        "package_watts": number(at(sample, "power", "Package")),
    }
    found.telemetry = {name: value for name, value in measured.items() if value is not None}
    clients = sample.get("clients")
    if isinstance(clients, Mapping):
        found.processes = tuple(
            DeviceProcess(pid=pid, name=words(at(client, "name")), memory_bytes=_memory(client))
            for client in clients.values()
            if (pid := whole(at(client, "pid"))) is not None
        )
    return found


def _memory(client: object) -> int | None:
    """Of its own memory, by newer versions."""
    return size_bytes(at(client, "memory", "local0", "resident"))

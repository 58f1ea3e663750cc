"""The child that talks to NVIDIA's driver: `python -m gpupool.discovery.nvml_probe`.

Reads a line, writes one line of JSON with every GPU, and so on until its input ends. Whatever the driver
does not say stays null. Imports nothing of ours but the messages it answers with and the questions it asks.
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gpupool.discovery import nvml_queries as queries
from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading, XidReading
from gpupool.discovery.nvml_queries import Asker, ask_system, error_name
from gpupool.discovery.parent import die_with_parent

__all__ = ["GpuReading", "NvmlReading", "Prober", "XidReading", "main"]

_COUNTERS_EVERY: Final = 5  # looks
_STATIC_EVERY: Final = 60
_MOST_EVENTS: Final = 64  # at one look: the rest waits for the next
_NO_INSTANCE: Final = 0xFFFFFFFF


def main() -> None:
    """Answer until the input ends, or NVML cannot be used: then once, and the end."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not print into the answers
    encoder = msgspec.json.Encoder()
    try:
        import pynvml
    except ImportError:
        sys.stdin.readline()
        answers.write(encoder.encode(NvmlReading(failure="NO_BINDING")) + b"\n")
        answers.flush()
        return
    prober: Prober | None = None
    for _ in sys.stdin:
        try:
            if prober is None:
                pynvml.nvmlInit()
                prober = Prober(pynvml)
            reading = prober.look()
        except pynvml.NVMLError as error:
            reading = NvmlReading(failure=error_name(pynvml, error))
        answers.write(encoder.encode(reading) + b"\n")
        answers.flush()
        if reading.failure:
            return  # a fresh process is the way to look at a driver that was loaded or replaced meanwhile


class Prober:
    """Looks at every GPU, and remembers between looks what need not be asked again."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._looks = 0
        self._static: dict[int, GpuReading] = {}
        self._counters: dict[int, GpuReading] = {}
        self._divided: dict[str | None, bool] = {}  # MIG mode by UUID, as it was said last
        self._events: Any = None
        self._registered: set[str] = set()

    def look(self) -> NvmlReading:
        """Every GPU as NVML sees it now. Raises NVMLError when NVML as a whole does not answer."""
        nvml = self._nvml
        gpus: list[GpuReading] = []
        handles: dict[int, Any] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                self._static.pop(index, None)
                gpus.append(GpuReading(index=index, trouble=error_name(nvml, error)))
        for index, handle in handles.items():
            gpus += self._look_at(index, handle, handles)
        self._looks += 1
        cuda = ask_system(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return NvmlReading(
            gpus=sorted(gpus, key=lambda gpu: gpu.index),
            driver_version=ask_system(nvml, nvml.nvmlSystemGetDriverVersion),
            cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            events=list(self._new_events()),
        )

    def _look_at(self, index: int, handle: Any, handles: dict[int, Any]) -> list[GpuReading]:
        nvml = self._nvml
        # Each GPU at another look: all the links of all of them at once would hold one look up.
        static = (self._looks + index) % _STATIC_EVERY == 0
        counters = (self._looks + index) % _COUNTERS_EVERY == 0
        ask = Asker(nvml, handle)
        known = self._static.get(index)
        if known is not None and ask(nvml.nvmlDeviceGetUUID) not in (known.uuid, None):
            # Another GPU has this number now: one that went from the bus moves those behind it up.
            known = None
            self._counters.pop(index, None)
        if known is None or static:
            known = GpuReading(index=index)
            queries.read_static(ask, known)
            queries.read_nvlinks(ask, known)
            known.peers = queries.read_peers(nvml, handle, index, handles)
            self._static[index] = known
            if known.uuid:
                self._register(handle, known.uuid)
        count = self._counters.get(index)
        if count is None or counters or static:
            count = GpuReading(index=index)
            queries.read_counters(ask, count)
            self._counters[index] = count
        gpu = replace(
            known,
            telemetry=dict(known.telemetry) | count.telemetry,
            facts=dict(known.facts) | count.facts,
        )
        queries.read_now(ask, gpu)
        mode = ask(nvml.nvmlDeviceGetMigMode)
        if mode is not None:
            self._divided[gpu.uuid] = mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        # One that does not answer this once is no whole that can be given away.
        gpu.mig_enabled = self._divided.get(gpu.uuid)
        gpu.trouble = ask.trouble
        if ask.trouble:
            self._static.pop(index, None)  # what it answers after a reset may be another thing
            self._counters.pop(index, None)
        if not gpu.mig_enabled:
            return [gpu]
        return [gpu, *self._instances(ask, gpu)]

    def _instances(self, ask: Asker, gpu: GpuReading) -> Iterator[GpuReading]:
        nvml = self._nvml
        for handle in queries.mig_handles(ask):
            mig = Asker(nvml, handle)
            instance = GpuReading(
                index=gpu.index,
                parent_uuid=gpu.uuid,
                pci_address=gpu.pci_address,
                compute_capability=gpu.compute_capability,
                architecture=gpu.architecture,
                numa_node=gpu.numa_node,
                temperature_celsius=gpu.temperature_celsius,
                recovery_action=gpu.recovery_action,
                mig_enabled=None,
            )
            instance.uuid = mig(nvml.nvmlDeviceGetUUID)
            instance.name = mig(nvml.nvmlDeviceGetName) or gpu.name
            instance.gpu_instance = mig(nvml.nvmlDeviceGetGpuInstanceId)
            attributes = mig(nvml.nvmlDeviceGetAttributes)
            if attributes is not None:
                instance.compute_units = int(attributes.multiprocessorCount) or None
            queries.read_memory(mig, instance)
            instance.processes = queries.read_processes(mig)
            instance.trouble = mig.trouble or gpu.trouble
            yield instance

    # Events

    def _register(self, handle: Any, uuid: str) -> None:
        nvml = self._nvml
        if uuid in self._registered:
            return
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            wanted &= nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)
                self._registered.add(uuid)
        except nvml.NVMLError:
            return  # no events of this GPU: the kernel's log is the second source

    def _new_events(self) -> Iterator[XidReading]:
        nvml = self._nvml
        for _ in range(_MOST_EVENTS if self._registered else 0):
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                return  # the time is up: there is no other
            ask = Asker(nvml, data.device)
            xid = bool(data.eventType & nvml.nvmlEventTypeXidCriticalError)
            instance = int(data.gpuInstanceId)
            yield XidReading(
                at=time.time(),
                kind="xid" if xid else "ecc",
                code=int(data.eventData) if xid else None,
                uuid=ask(nvml.nvmlDeviceGetUUID),
                pci_address=queries.pci_address(ask(nvml.nvmlDeviceGetPciInfo)),
                gpu_instance=None if instance == _NO_INSTANCE else instance,
            )


if __name__ == "__main__":
    main()

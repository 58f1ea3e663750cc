"""The child that talks to NVIDIA's driver: `python -m gpupool.discovery.nvml_probe`.

Reads a line, writes one line of JSON with every GPU, and so on until its input ends. Whatever the driver
does not say stays null. Imports nothing of ours but the messages it answers with.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_PR_SET_PDEATHSIG: Final = 1


class GpuReading(msgspec.Struct, kw_only=True):
    """One GPU, or one MIG instance of it."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_address: str | None = None  # 0000:17:00.0
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    compute_capability: str | None = None
    mig_enabled: bool | None = None
    parent_uuid: str | None = None  # of a MIG instance
    trouble: str = ""  # what the driver said about a GPU that does not answer


class NvmlReading(msgspec.Struct, kw_only=True):
    """One look. `failure` is the NVML error's name where there was nothing to look at."""

    gpus: list[GpuReading] = []
    driver_version: str | None = None
    failure: str = ""


def main() -> None:
    """Answer until the input ends, or NVML cannot be used: then once, and the end."""
    _die_with_parent()
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
    started = False
    for _ in sys.stdin:
        try:
            if not started:
                pynvml.nvmlInit()
                started = True
            reading = read(pynvml)
        except pynvml.NVMLError as error:
            reading = NvmlReading(failure=error_name(pynvml, error))
        answers.write(encoder.encode(reading) + b"\n")
        answers.flush()
        if reading.failure:
            return  # a fresh process is the way to look at a driver that was loaded or replaced meanwhile


def read(nvml: Any) -> NvmlReading:
    """Every GPU as NVML sees it now. Raises NVMLError when NVML as a whole does not answer."""
    gpus: list[GpuReading] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            gpus.append(GpuReading(index=index, trouble=error_name(nvml, error)))
            continue
        gpus += _read_gpu(nvml, handle, index)
    return NvmlReading(gpus=gpus, driver_version=_ask(nvml, nvml.nvmlSystemGetDriverVersion))


def error_name(nvml: Any, error: Any) -> str:
    """The NVML constant of an error without its prefix, such as DRIVER_NOT_LOADED."""
    for name in dir(nvml):
        if name.startswith("NVML_ERROR_") and getattr(nvml, name) == error.value:
            return name.removeprefix("NVML_ERROR_")
    return f"ERROR_{error.value}"


def _read_gpu(nvml: Any, handle: Any, index: int) -> list[GpuReading]:
    gpu = GpuReading(index=index)
    gpu.uuid = _ask(nvml, nvml.nvmlDeviceGetUUID, handle)
    gpu.name = _ask(nvml, nvml.nvmlDeviceGetName, handle)
    gpu.pci_address = _pci_address(_ask(nvml, nvml.nvmlDeviceGetPciInfo, handle))
    gpu.temperature_celsius = _ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    gpu.utilization = None if rates is None else rates.gpu / 100
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    gpu.compute_capability = None if capability is None else f"{capability[0]}.{capability[1]}"
    mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    gpu.mig_enabled = None if mode is None else mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    _read_memory(nvml, handle, gpu)
    if not gpu.mig_enabled:
        return [gpu]
    instances = []
    for slot in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if mig is None:
            continue  # an empty slot
        instance = GpuReading(index=index, parent_uuid=gpu.uuid, pci_address=gpu.pci_address)
        instance.uuid = _ask(nvml, nvml.nvmlDeviceGetUUID, mig)
        instance.name = _ask(nvml, nvml.nvmlDeviceGetName, mig) or gpu.name
        instance.compute_capability = gpu.compute_capability
        instance.temperature_celsius = gpu.temperature_celsius
        _read_memory(nvml, mig, instance)
        instances.append(instance)
    return [gpu, *instances]


def _read_memory(nvml: Any, handle: Any, gpu: GpuReading) -> None:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            gpu.trouble = error_name(nvml, error)
        return
    gpu.memory_bytes, gpu.memory_used_bytes = memory.total, memory.used


def _ask(nvml: Any, question: Callable[..., T], *arguments: Any) -> T | None:
    """The answer, or None for whatever this driver or GPU does not say."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _pci_address(info: Any) -> str | None:
    """NVML writes eight digits of domain (00000000:17:00.0), the kernel four."""
    if info is None:
        return None
    bus_id = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else None


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()

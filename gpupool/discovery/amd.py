"""AMD GPUs of one node: amd-smi where it is installed, else rocm-smi; the driver's files for what moves each second."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.clock import Clock
from gpupool.discovery import amd_partitions, amd_smi, amd_sysfs, rocm_smi
from gpupool.discovery.base import Device
from gpupool.discovery.gpu_catalogue import architecture_of, name_of
from gpupool.discovery.reading import Reading, joined, named_links
from gpupool.discovery.tool_source import Told, ToolSource
from gpupool.discovery.topology import with_pcie


def amd_source(*, env: Mapping[str, str], clock: Clock, root: Path = Path("/")) -> ToolSource:
    """`env` is the whole environment of the tools."""
    return ToolSource("amd", devices, env=env, clock=clock, root=root, fleeting=("metric", "process", "rocm"))


def devices(told: Told, node_id: str) -> Sequence[Device]:
    """Every GPU, and every part of a divided one."""
    found = readings(told)
    paths = {reading.pci_address: reading.path for reading in found if reading.pci_address and reading.path}
    return with_pcie(named_links(amd_partitions.devices(found, node_id)), paths)


def readings(told: Told) -> list[Reading]:
    """What the files and the tools say together. Files are fresher, tools know more."""
    by_tools = amd_smi.readings(told.outputs)
    printed = told.outputs.get("rocm", "")
    by_tools = by_tools or rocm_smi.readings(printed) or rocm_smi.readings_of_text(printed)
    by_tools = by_tools or rocm_smi.readings_of_table(printed)
    by_files = amd_sysfs.readings(card for card in told.cards if card.get("driver", "amdgpu") == "amdgpu")
    if by_tools:
        for reading in by_files:
            reading.index, reading.name = None, ""
    found = joined(by_files, by_tools, rocm_smi.readings_of_rocminfo(told.outputs.get("rocminfo", "")))
    for reading in found:
        reading.name = reading.name or name_of(reading.device_id)
        reading.architecture = reading.architecture or architecture_of(reading.name, reading.device_id)
        if reading.unique_id and reading.pci_address:
            told.identities[reading.pci_address] = reading.unique_id
        else:
            # Not every driver's files say it: a tool that fell silent must not make another device of it.
            reading.unique_id = told.identities.get(reading.pci_address, "")
        reading.processes = reading.processes or told.processes.get(reading.pci_address, ())
    return [reading for reading in found if reading.index is not None or reading.memory_bytes is not None]

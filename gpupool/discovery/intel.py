"""Intel GPUs of one node: xpu-smi where it is installed, and the files of the drivers i915 and xe.

A GPU of several tiles is divided: its tiles are allocatable, the whole is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from core.clock import Clock
from gpupool.discovery import intel_gpu_top, intel_sysfs, xpu_smi
from gpupool.discovery.base import Device, Link
from gpupool.discovery.gpu_catalogue import architecture_of, name_of
from gpupool.discovery.memory_classes import gpu_regions
from gpupool.discovery.reading import Reading, device_of, filled, joined, named_links, part_of
from gpupool.discovery.tool_source import Told, ToolSource
from gpupool.discovery.topology import Matrix, matrix, with_pcie


def intel_source(*, env: Mapping[str, str], clock: Clock, root: Path = Path("/")) -> ToolSource:
    """`env` is the whole environment of the tools."""
    return ToolSource("intel", devices, env=env, clock=clock, root=root, fleeting=("stats", "top"))


def devices(told: Told, node_id: str) -> Sequence[Device]:
    """Every GPU, and every tile of those that have several."""
    by_tool = xpu_smi.readings(told.outputs)
    by_files = intel_sysfs.readings(told.cards)
    if by_tool:
        for reading in by_files:
            reading.index, reading.name = None, ""
    found = joined(by_files, by_tool)
    top = intel_gpu_top.reading(told.outputs.get("top", ""))
    if top is not None and len(found) == 1:  # it looks at the first GPU only
        found[0] = filled(found[0], top)
    between = matrix(told.outputs.get("matrix", ""))
    made: list[Device] = []
    before = 0
    for reading in sorted(found, key=lambda reading: reading.pci_address):
        reading.name = reading.name or name_of(reading.device_id)
        reading.architecture = reading.architecture or architecture_of(reading.name, reading.device_id)
        reading.processes = reading.processes or told.processes.get(reading.pci_address, ())
        made.extend(_devices(reading, told, node_id, before))
        before += reading.tiles or 1
    paths = {reading.pci_address: reading.path for reading in found if reading.pci_address and reading.path}
    return with_pcie(named_links(_with_links(made, between)), paths)


def _devices(reading: Reading, told: Told, node_id: str, before: int) -> Iterator[Device]:
    """The runtime counts tiles in the order of the bus: `before` are those of the cards before this one."""
    device = device_of(reading, node_id)
    if reading.index is not None:
        device = replace(device, facts={**device.facts, "tool_number": str(reading.index)})
    device = replace(device, index=before)
    if reading.memory_bytes is None:
        # It works in the host's memory, or nothing tells how much it has: nothing of it can be claimed.
        yield replace(device, allocatable=False, facts={**device.facts, "memory": "none of its own is known"})
        return
    count = reading.tiles or 1
    if count <= 1:
        yield device
        return
    whole = replace(device, allocatable=False, memory_used_bytes=None, processes=())
    yield whole
    told_tiles = {
        tile.number: tile for tile in xpu_smi.tiles(told.outputs, -1 if reading.index is None else reading.index)
    }
    each = reading.memory_bytes // count
    for number in range(count):
        tile = told_tiles.get(number)
        yield replace(
            whole,
            stable_id=f"{device.stable_id}.t{number}",
            name=f"{device.name} tile {number}",
            index=before + number,
            memory_bytes=each,
            memory_used_bytes=None if tile is None else tile.memory_used_bytes,
            utilization=None if tile is None else tile.utilization,
            temperature_celsius=None if tile is None else tile.temperature_celsius,
            allocatable=True,
            partition_of=device.stable_id,
            traceable_id=f"{device.traceable_id}.t{number}",
            regions=tuple(replace(region, base=each * number) for region in gpu_regions(device.name, each)),
            capability=part_of(device.capability, count),
            links=(),
            telemetry={} if tile is None else tile.telemetry,
            facts={**device.facts, "tile": str(number), "tiles": str(count)},
        )


def _with_links(made: Sequence[Device], between: Matrix) -> Iterator[Device]:
    """Rows of the matrix are tiles, `GPU 1/0`; a GPU of one tile is its only one."""
    names = {}
    for device in made:
        if device.allocatable and "tool_number" in device.facts:
            names[f"GPU {device.facts['tool_number']}/{device.facts.get('tile', '0')}"] = device.stable_id
    links: dict[str, list[Link]] = {}
    for one, other, kind, lanes in between.links():
        if one in names and other in names:
            links.setdefault(names[one], []).append(Link(peer=names[other], kind=kind, lanes=lanes))
    for device in made:
        kinds = tuple(links.get(device.stable_id, ()))
        yield replace(device, links=kinds) if kinds else device

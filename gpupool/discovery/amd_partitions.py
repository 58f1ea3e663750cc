"""AMD GPUs that are divided into compute partitions: the memory is divided, every part is listed, the whole is not
allocatable.

Tools differ in what they list (each part, or the whole alone) and in whose memory they tell for a part (its own, or
all of it). What is made of it here never offers more than the whole has.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from gpupool.discovery.base import Device
from gpupool.discovery.gpu_catalogue import product
from gpupool.discovery.memory_classes import gpu_regions
from gpupool.discovery.reading import Reading, device_of, part_of

_PARTS: Final = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_CPX: Final = "CPX"
_MEMORY_PARTS: Final = re.compile(r"^NPS(\d+)$")
_GIB: Final = 1 << 30
_MORE_THAN_SOLD: Final = 1.1


def devices(readings: Sequence[Reading], node_id: str) -> Iterator[Device]:
    """Devices of all readings, the parts of divided GPUs after their whole."""
    for group in _wholes(readings):
        mode = next((reading.compute_partition for reading in group if reading.compute_partition), "")
        count = _count(mode, group)
        if count <= 1 and len(group) == 1:
            yield _with_modes(device_of(group[0], node_id), mode, group)
        else:
            yield from _divided(group, mode, max(count, len(group)), node_id)


def _wholes(readings: Sequence[Reading]) -> list[list[Reading]]:
    """Readings of the same chip together: at one slot, and not of different ids (those are virtual functions)."""
    groups: list[list[Reading]] = []
    for reading in readings:
        group = next((group for group in groups if _same_chip(group[0], reading)), None)
        if group is None:
            groups.append([reading])
        else:
            group.append(reading)
    return groups


def _same_chip(one: Reading, other: Reading) -> bool:
    if one.unique_id and other.unique_id and one.unique_id != other.unique_id:
        return False
    if one.pci_address and other.pci_address:
        return one.pci_address.rpartition(".")[0] == other.pci_address.rpartition(".")[0]
    return bool(one.unique_id) and one.unique_id == other.unique_id


def _count(mode: str, group: Sequence[Reading]) -> int:
    if mode != _CPX:
        return _PARTS.get(mode, 1)
    known = product(group[0].name)
    return max(known.parts if known is not None and known.parts is not None else 1, len(group))


def _divided(group: Sequence[Reading], mode: str, count: int, node_id: str) -> Iterator[Device]:
    head = next((reading for reading in group if reading.partition_id in (0, None)), group[0])
    total = _whole_memory(group, count)
    whole = device_of(replace(head, memory_bytes=total, processes=()), node_id)
    whole = replace(whole, allocatable=False, memory_used_bytes=None)
    yield _with_modes(whole, mode, group)
    told = {
        reading.partition_id if reading.partition_id is not None else at: reading for at, reading in enumerate(group)
    }
    each = None if total is None else total // count
    for number in range(count):
        reading = told.get(number)
        base = 0 if each is None else each * number
        yield replace(
            whole,
            stable_id=f"{whole.stable_id}.p{number}",
            name=f"{whole.name} {mode or 'part'} {number}",
            index=None if reading is None else reading.index,
            memory_bytes=each,
            memory_used_bytes=_used(reading, each),
            utilization=None if reading is None else reading.utilization,
            allocatable=True,
            partition_of=whole.stable_id,
            traceable_id=f"{whole.traceable_id}.p{number}",
            tags=(*(f"{tag}-{mode}" for tag in whole.tags[-1:]),),
            regions=tuple(replace(region, base=base) for region in gpu_regions(whole.name, each)),
            capability=part_of(whole.capability, count),
            links=(),
            processes=() if reading is None else reading.processes,
            telemetry={} if reading is None else reading.telemetry,
            facts={
                **whole.facts,
                **_modes(mode, group),
                "partition": str(number),
                "partitions": str(count),
                # How the runtime knows it. What is no UUID of its own is taken by no engine.
                "uuid": _own_uuid(reading, whole) or f"part {number} of {whole.stable_id}",
            },
        )


def _own_uuid(reading: Reading | None, whole: Device) -> str:
    """Newer drivers give each part one; older ones show the whole's for all parts, which tells none of them apart."""
    if reading is None or reading.runtime_id == whole.stable_id:
        return ""
    return reading.runtime_id


def _whole_memory(group: Sequence[Reading], count: int) -> int | None:
    """Memory of the whole: what a tool says for one part may be the part's, or the whole's."""
    sizes = [reading.memory_bytes for reading in group if reading.memory_bytes is not None]
    if not sizes:
        return None
    most = max(sizes)
    known = product(group[0].name)
    sold = None if known is None or known.memory_gib is None else known.memory_gib * _GIB
    if sold is None:
        return most
    return most * count if most * count <= sold * _MORE_THAN_SOLD else most


def _used(reading: Reading | None, each: int | None) -> int | None:
    """A figure beyond the part's own memory is the whole's: what the part uses of it is not known."""
    if reading is None or reading.memory_used_bytes is None:
        return None
    return None if each is not None and reading.memory_used_bytes > each else reading.memory_used_bytes


def _with_modes(device: Device, mode: str, group: Sequence[Reading]) -> Device:
    return replace(device, facts={**device.facts, **_modes(mode, group)})


def _modes(mode: str, group: Sequence[Reading]) -> dict[str, str]:
    memory = next((reading.memory_partition for reading in group if _MEMORY_PARTS.match(reading.memory_partition)), "")
    return {key: value for key, value in (("compute_partition", mode), ("memory_partition", memory)) if value}

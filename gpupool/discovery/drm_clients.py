"""Which processes have memory on which GPU, by the kernel's own count (/proc/PID/fdinfo of DRM files).

The same words from amdgpu, i915, xe and others: what a vendor's tool does not list, or no tool is there to list.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.discovery.base import DeviceProcess
from gpupool.discovery.small_files import text_of
from gpupool.discovery.tolerant import pci_address, size_bytes

_NODES: Final = ("/dev/dri/", "/dev/kfd")
_MEMORY: Final = re.compile(r"^drm-(total|resident|memory)-([\w-]+)$")
_OWN: Final = re.compile(r"^(?:vram|local|stolen-local)\d*$")
_MOST_FILES: Final = 4096


@dataclass(frozen=True, slots=True)
class DrmClient:
    """One open GPU of one process. Descriptors that are copies of each other have one number."""

    driver: str
    device: str  # PCI address, or what the driver names it by
    client: str
    own_bytes: int | None  # of the GPU's own memory; None where it has none or does not say


def parse(fdinfo: str) -> DrmClient | None:
    """One file of /proc/PID/fdinfo; None for what is no GPU."""
    values: dict[str, str] = {}
    for line in fdinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values[name.strip()] = value.strip()
    driver = values.get("drm-driver", "")
    if not driver:
        return None
    sizes: dict[str, dict[str, int]] = {}
    for name, value in values.items():
        if (match := _MEMORY.match(name)) is not None and (size := size_bytes(value)) is not None:
            sizes.setdefault(match[2], {})[match[1]] = size
    # `resident` is what is in a region now; `memory` is its older name, and `total` counts what was moved away too.
    held = {region: told.get("resident", told.get("memory", told.get("total", 0))) for region, told in sizes.items()}
    own = [size for region, size in held.items() if _OWN.match(region)]
    place = values.get("drm-pdev", "")
    return DrmClient(
        driver=driver,
        device=pci_address(place) or place,
        client=values.get("drm-client-id", ""),
        own_bytes=sum(own) if own else None,
    )


def processes(
    clients: Mapping[int, Iterable[DrmClient]], names: Mapping[int, str]
) -> dict[str, tuple[DeviceProcess, ...]]:
    """By the device's address; each client counts once for a process, however many descriptors it has."""
    found: dict[str, list[DeviceProcess]] = {}
    for pid in sorted(clients):
        by_device: dict[str, dict[str, DrmClient]] = {}
        for client in clients[pid]:
            by_device.setdefault(client.device, {})[client.client] = client
        for device, known in by_device.items():
            sizes = [client.own_bytes for client in known.values() if client.own_bytes is not None]
            found.setdefault(device, []).append(
                DeviceProcess(pid=pid, name=names.get(pid, ""), memory_bytes=sum(sizes) if sizes else None)
            )
    return {device: tuple(listed) for device, listed in found.items()}


def clients(root: Path = Path("/")) -> tuple[dict[int, list[DrmClient]], dict[int, str]]:
    """Every process that has a GPU open and that may be looked at, with its name. Runs in a child."""
    found: dict[int, list[DrmClient]] = {}
    names: dict[int, str] = {}
    for pid, number in _open_gpus(root):
        client = parse(text_of(root / "proc" / str(pid) / "fdinfo" / number))
        if client is not None:
            found.setdefault(pid, []).append(client)
            names.setdefault(pid, text_of(root / "proc" / str(pid) / "comm"))
    return found, names


def _open_gpus(root: Path) -> Iterator[tuple[int, str]]:
    left = _MOST_FILES
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            numbers = os.listdir(folder / "fd")
        except OSError:
            continue  # another user's, or it has just ended
        for number in numbers:
            try:
                target = os.readlink(folder / "fd" / number)
            except OSError:
                continue
            if target.startswith(_NODES):
                yield int(folder.name), number
                left -= 1
                if left <= 0:
                    return

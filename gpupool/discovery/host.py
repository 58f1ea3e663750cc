"""The host's CPU as a device: its memory, as far as this process may use it, is what can be claimed."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gpupool.discovery.base import Device, Inventory

_UNLIMITED: Final = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes; None where the machine does not say."""

    total: int | None  # physical memory, or a control group's limit below it
    available: int | None  # what could be used now without swapping
    limited_by: str = ""  # the control group file that sets `total`, when one does


class HostSource:
    """The machine that the agent runs on."""

    def __init__(
        self,
        *,
        memory_share: float,
        root: Path = Path("/"),
        cpu_percent: Callable[[], float | None] | None = None,
    ) -> None:
        """`memory_share` (0 to 1) of the memory may be claimed. `root` is another file system in tests."""
        self._share = memory_share
        self._root = root
        self._cpu_percent = cpu_percent or _cpu_percent
        self._stable_id = f"cpu-{host_id(root)}"
        self._name = cpu_model(root)
        self._cores = usable_cores()

    async def probe(self) -> Inventory:
        memory = host_memory(self._root)
        percent = self._cpu_percent()
        facts = {"cores": str(self._cores), "architecture": platform.machine()}
        if memory.total is not None:
            facts["memory_total_bytes"] = str(memory.total)
        if memory.available is not None:
            facts["memory_available_bytes"] = str(memory.available)
        if memory.limited_by:
            facts["memory_limited_by"] = memory.limited_by
        device = Device(
            stable_id=self._stable_id,
            kind="cpu",
            vendor="host",
            name=self._name,
            index=0,
            memory_bytes=None if memory.total is None else int(memory.total * self._share),
            utilization=None if percent is None else min(1.0, max(0.0, percent / 100)),
            facts=facts,
        )
        return Inventory((device,))

    async def close(self) -> None:
        return None


def host_id(root: Path = Path("/")) -> str:
    """An identity of this machine that survives reboots: DMI product UUID, else machine id, else host name.

    The DMI UUID is readable by root only and absent in some virtual machines.
    """
    for file in ("sys/class/dmi/id/product_uuid", "etc/machine-id", "var/lib/dbus/machine-id"):
        value = _read(root / file).lower()
        if len(value.replace("-", "").strip("0f")) > 0 and len(value) >= 32:  # all 0 or all f: not filled in
            return value
    return f"host-{platform.node() or 'unknown'}"


def cpu_model(root: Path = Path("/")) -> str:
    """The processor's name as the kernel gives it."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or f"{platform.machine()} processor"


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Memory of the machine, or of the control group that confines this process where that is less."""
    total, available = _meminfo(root)
    if total is None and root == Path("/"):
        memory = psutil.virtual_memory()  # not Linux
        total, available = int(memory.total), int(memory.available)
    limit, used, file = _tightest_group(root)
    if limit is None or (total is not None and limit >= total):
        return HostMemory(total, available)
    left = None if used is None else max(0, limit - used)
    if left is not None:
        available = left if available is None else min(left, available)
    return HostMemory(limit, available, limited_by=file)


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    values: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB" and fields[0].isdigit():
            values[name] = int(fields[0]) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def _tightest_group(root: Path) -> tuple[int | None, int | None, str]:
    """(limit, use, file) of the smallest memory limit on the way from our control group up to the root."""
    tightest: tuple[int | None, int | None, str] = (None, None, "")
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            base, limit_file, use_file = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit_file, use_file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.strip().lstrip("/")
        while True:
            limit = _number(group / limit_file)
            if limit is not None and limit < _UNLIMITED and (tightest[0] is None or limit < tightest[0]):
                tightest = (limit, _in_use(group, use_file), str(group / limit_file))
            if group == base or base not in group.parents:
                break
            group = group.parent
    return tightest


def _in_use(group: Path, use_file: str) -> int | None:
    """What the group uses and cannot drop: its use counts page cache too."""
    used = _number(group / use_file)
    if used is None:
        return None
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return max(0, used - int(value))
    return used


def _cpu_percent() -> float | None:
    # The first call measures nothing and says 0.0; since then, or since the last call, afterwards.
    return psutil.cpu_percent(interval=None)


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

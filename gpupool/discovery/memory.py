"""Memory of the host as this process may use it: of the machine, or of the control group that confines it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gpupool.discovery.small_files import text_of

_UNLIMITED: Final = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes; None where the machine does not say."""

    total: int | None  # physical memory, or a control group's limit below it
    available: int | None  # what could be used now without swapping
    limited_by: str = ""  # the control group file that sets `total`, when one does


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
    for line in text_of(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB" and fields[0].isdigit():
            values[name] = int(fields[0]) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def _tightest_group(root: Path) -> tuple[int | None, int | None, str]:
    """(limit, use, file) of the smallest memory limit on the way from our control group up to the root."""
    tightest: tuple[int | None, int | None, str] = (None, None, "")
    for line in text_of(root / "proc/self/cgroup").splitlines():
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
    for line in text_of(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return max(0, used - int(value))
    return used


def _number(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdigit() else None

"""A control group (version 2) for each instance, below the one that was delegated to the agent.

A group with processes cannot hand controllers on to groups below it, so that the agent moves itself into a leaf of
its own first. It does so only where nobody else's processes are in its group.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from gpupool.discovery.small_files import text_of
from gpupool.policies.isolation import host_limits

_MOUNTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_AGENT_LEAF: Final = "gatehouse-agent"
_PREFIX: Final = "gatehouse-"
_NEEDED: Final = "memory"
_PERIOD_MICROSECONDS: Final = 100_000

ENTER: Final = ("/bin/sh", "-c", 'echo 0 > "$1/cgroup.procs" && shift && exec "$@"', "enter")
"""Goes into a group and becomes the engine: the same process, and never outside of the group."""


class GroupRefused(Exception):
    """No group can be made; the message is a sentence for the operator."""


def own_group(root: Path) -> Path | None:
    """The folder of the group that this process is in; None where there is no version 2."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for mount in _MOUNTS:
                folder = root / mount / path.strip().lstrip("/")
                if (folder / "cgroup.controllers").exists():
                    return folder
    return None


def delegated_group(root: Path) -> Path | None:
    """The group below which instances get theirs: the agent's own, or the one above its leaf."""
    group = own_group(root)
    return group.parent if group is not None and group.name == _AGENT_LEAF else group


def why_no_groups(root: Path) -> str | None:
    """Why instances cannot have groups here, in a sentence; None when they can."""
    base = delegated_group(root)
    if base is None:
        return "This machine has no control groups of version 2 (no line 0:: in /proc/self/cgroup, or no mount)."
    controllers = text_of(base / "cgroup.controllers").split()
    if _NEEDED not in controllers:
        return f"The memory controller is not in {base / 'cgroup.controllers'}: delegate it to the agent's service."
    if not os.access(base / "cgroup.subtree_control", os.W_OK) or not os.access(base, os.W_OK):
        return f"{base} is not writable for this agent: say Delegate=yes in its systemd unit."
    if _NEEDED not in text_of(base / "cgroup.subtree_control").split():
        others = _others_in(base)
        if others:
            return f"{base} holds processes of others too, such as {others[0]}: give the agent a group of its own."
    return None


def _others_in(base: Path) -> list[int]:
    pids = [int(word) for word in text_of(base / "cgroup.procs").split() if word.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and not _is_own_child(pid)]


def _is_own_child(pid: int) -> bool:
    """Helpers of this agent, such as its probes."""
    for _ in range(4):
        if pid == os.getpid():
            return True
        fields = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        if len(fields) < 2 or not fields[1].isdigit() or int(fields[1]) <= 1:
            return False
        pid = int(fields[1])
    return False


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one instance."""

    host_bytes: int
    cpu_cores: float | None = None


class Groups:
    """Makes, reads and removes instances' groups."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._killed: dict[UUID, int] = {}  # as counted when the group was made, or found from an earlier start

    def make(self, instance_id: UUID, limits: Limits) -> Path:
        """The instance's group, with its limits set. Raises GroupRefused."""
        reason = why_no_groups(self._root)
        base = delegated_group(self._root)
        if reason is not None or base is None:
            raise GroupRefused(reason or "This machine has no control groups of version 2.")
        try:
            self._hand_on(base, cpu=limits.cpu_cores is not None)
            folder = base / f"{_PREFIX}{instance_id}"
            folder.mkdir(exist_ok=True)
            self._killed[instance_id] = _event(folder / "memory.events", "oom_kill")
            hard, pressed = host_limits(limits.host_bytes)
            _write(folder / "memory.max", str(hard))
            _write(folder / "memory.high", str(pressed))
            if (folder / "memory.swap.max").exists():
                _write(folder / "memory.swap.max", "0")
            if (folder / "memory.oom.group").exists():
                _write(folder / "memory.oom.group", "1")  # an engine without one of its workers is of no use
            if limits.cpu_cores is not None:
                _write(folder / "cpu.max", f"{int(limits.cpu_cores * _PERIOD_MICROSECONDS)} {_PERIOD_MICROSECONDS}")
        except OSError as error:
            raise GroupRefused(f"The control group of the instance cannot be made: {error.strerror}.") from error
        return folder

    def find(self, instance_id: UUID) -> Path | None:
        """The instance's group, where it has one."""
        base = delegated_group(self._root)
        folder = None if base is None else base / f"{_PREFIX}{instance_id}"
        return folder if folder is not None and folder.exists() else None

    def remove(self, instance_id: UUID) -> str:
        """Kill what is left in the group and remove it; returns what the kernel did for memory, in a sentence."""
        folder = self.find(instance_id)
        if folder is None:
            return ""
        kills = _event(folder / "memory.events", "oom_kill") > self._killed.pop(instance_id, 0)
        with contextlib.suppress(OSError):
            if (folder / "cgroup.kill").exists():
                _write(folder / "cgroup.kill", "1")
        with contextlib.suppress(OSError):  # busy while its last process is being taken away: the next start uses it
            folder.rmdir()
        return "The kernel ended it because it used all of its claim of host memory." if kills else ""

    def _hand_on(self, base: Path, *, cpu: bool) -> None:
        wanted = [_NEEDED, *(["cpu"] if cpu else [])]
        missing = [name for name in wanted if name not in text_of(base / "cgroup.subtree_control").split()]
        if not missing:
            return
        leaf = base / _AGENT_LEAF
        leaf.mkdir(exist_ok=True)
        for pid in text_of(base / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)
        _write(base / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))


def used_bytes(group: Path) -> int | None:
    """What a group uses of the host's memory now, page cache included; None where it does not say."""
    text = text_of(group / "memory.current")
    return int(text) if text.isdigit() else None


def _event(path: Path, name: str) -> int:
    for line in text_of(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)

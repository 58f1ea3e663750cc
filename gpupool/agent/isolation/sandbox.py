"""How an engine is put into a sandbox: it sees a read-only system, its own version's files, its work folder and its
own devices, and no other process.

The network is the host's: the relay reaches an engine by its port, and engines of one node have a port each.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from gpupool.weights.files import FOLDER_MARK, files_of, mounts_of

_SYSTEM: Final = ("/usr", "/opt/rocm", "/opt/intel")
_SYSTEM_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS: Final = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/ssl",
    "/etc/ca-certificates", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group",
    "/etc/OpenCL", "/etc/vulkan", "/etc/nvidia",
)  # fmt: skip
_TREES: Final = ("/sys",)
MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108  # the default of MPS


@dataclass(frozen=True, slots=True)
class Room:
    """What one sandbox holds."""

    work: Path  # writable, the engine's own; its current folder and its home
    read_only: tuple[Path, ...]  # the engine's program
    shown: tuple[tuple[Path, Path], ...] = ()  # the version's files: what, and where it is seen
    devices: tuple[str, ...] = ()  # device nodes
    shared: tuple[str, ...] = ()  # folders that are the host's own, writable: the pipes of MPS


def trial_argv(bwrap: str) -> tuple[str, ...]:
    """The smallest sandbox with all that ours needs of the kernel: whether it can be made here."""
    return (
        bwrap, "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--ro-bind", "/", "/",
        "--proc", "/proc", "--dev", "/dev", "true",
    )  # fmt: skip


def program_paths(code: Path) -> tuple[Path, ...]:
    """What this interpreter and the engines' own modules are made of. `code` is the folder that has gpupool in it.

    Not the whole of that folder: an installation may keep its data there.
    """
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(sysconfig.get_path("purelib")), code / "gpupool"]
    return tuple(_outermost(path.resolve() for path in found if path.exists()))


def artefact_mounts(model: Path) -> tuple[tuple[Path, Path], ...]:
    """The version's own files and nothing beside them: (what is shown, where), in the words of its command line.

    Raises weights.files.UnfitFolder, or OSError.
    """
    if model.is_dir() or model.name == FOLDER_MARK:
        folder = model if model.is_dir() else model.parent
        return ((mounts_of(model)[0], folder),)
    return tuple((file.resolve(), model.parent / name) for name, file in files_of(model).items())


def named_paths(argv: Iterable[str]) -> tuple[Path, ...]:
    """Files that a command line names by absolute paths, such as adapters."""
    return tuple(Path(word) for word in argv if word.startswith("/") and os.path.exists(word))


def bubblewrap_argv(argv: Sequence[str], room: Room, *, bwrap: str = "bwrap") -> tuple[str, ...]:
    """The command that runs `argv` in bubblewrap. Signals and group: see agent.processes.signal_group."""
    words = [bwrap, "--unshare-user-try", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--cap-drop", "ALL"]  # and no --die-with-parent: an agent that ends leaves its engines to the next one
    if not room.shared:  # MPS speaks by shared memory of the host's
        words.append("--unshare-ipc")
    for path in _SYSTEM:
        words += ["--ro-bind-try", path, path]
    for path in _SYSTEM_LINKS:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind-try", path, path]
    for path in (*_SETTINGS, *_TREES):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/tmp"]  # noqa: S108  # its own
    for node in room.devices:
        words += ["--dev-bind-try", node, node]
    for program in _outermost(room.read_only):
        words += ["--ro-bind", str(program), str(program)]
    for source, target in room.shown:
        words += ["--ro-bind", str(source), str(target)]
    for folder in room.shared:
        words += ["--bind", folder, folder]
    words += ["--bind", str(room.work), str(room.work), "--chdir", str(room.work)]
    words += ["--setenv", "HOME", str(room.work), "--setenv", "TMPDIR", "/tmp"]  # noqa: S108  # its own
    return (*words, "--", *argv)


def gvisor_argv(bundle: Path, name: str, *, runsc: str = "runsc", nvidia: bool) -> tuple[str, ...]:
    """The command that runs a bundle in gVisor. Its state is in the bundle's folder: nobody else's runsc sees it."""
    words = [runsc, "--root", str(bundle / "state"), "--network=host", "--ignore-cgroups"]
    if os.geteuid() != 0:
        words.append("--rootless")
    if nvidia:
        words.append("--nvproxy")
    return (*words, "run", "--bundle", str(bundle), name)


def write_bundle(bundle: Path, argv: Sequence[str], env: dict[str, str], room: Room) -> None:
    """The folder that gVisor runs. Raises OSError."""
    (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
    config = bundle_config(argv, env, room)
    for mount in config["mounts"]:
        target = bundle / "rootfs" / str(mount["destination"]).lstrip("/")
        if mount["type"] == "bind" and Path(mount["source"]).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        else:
            target.mkdir(parents=True, exist_ok=True)
    (bundle / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))


def bundle_config(argv: Sequence[str], env: dict[str, str], room: Room) -> dict[str, Any]:
    """The bundle's description, as the Open Container Initiative writes it."""
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},  # noqa: S108  # its own
    ]
    system = [Path(path) for path in (*_SYSTEM, *_SYSTEM_LINKS, *_SETTINGS, *_TREES) if os.path.exists(path)]
    mounts += [_bind(path, path, "ro") for path in (*system, *_outermost(room.read_only))]
    mounts += [_bind(source, target, "ro") for source, target in room.shown]
    nodes = [Path(node) for node in (*room.devices, *room.shared) if os.path.exists(node)]
    mounts += [_bind(path, path, "rw") for path in (*nodes, room.work)]
    told = {**env, "HOME": str(room.work), "TMPDIR": "/tmp"}  # noqa: S108  # its own
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": os.geteuid(), "gid": os.getegid()},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in sorted(told.items())],
            "cwd": str(room.work),
            "noNewPrivileges": True,
            "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted")},
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "engine",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
    }


def _bind(source: Path, target: Path, mode: str) -> dict[str, Any]:
    return {"destination": str(target), "type": "bind", "source": str(source), "options": ["rbind", mode]}


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Without those that lie in another one."""
    kept: list[Path] = []
    for path in sorted(dict.fromkeys(paths), key=lambda one: (len(one.parts), str(one))):
        if not any(other == path or other in path.parents for other in kept):
            kept.append(path)
    return kept

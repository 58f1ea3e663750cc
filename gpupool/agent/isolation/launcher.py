"""Puts an engine's command into what its version asks for: control group, sandbox, limits of MPS. Or refuses."""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from gpupool.agent.isolation.cgroup import ENTER, GroupRefused, Groups, Limits
from gpupool.agent.isolation.nodes import NodesUnknown, device_nodes
from gpupool.agent.isolation.sandbox import (
    MPS_PIPES,
    Room,
    artefact_mounts,
    bubblewrap_argv,
    gvisor_argv,
    named_paths,
    program_paths,
    write_bundle,
)
from gpupool.discovery.tools import CODE_ROOT
from gpupool.engines.base import GivenDevice
from gpupool.policies.isolation import (
    Claimed,
    Isolation,
    IsolationRefused,
    contradictions,
    mps_limits,
    parse_isolation,
    refusals,
)
from gpupool.stream.messages import DesiredInstance
from gpupool.weights.files import UnfitFolder

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # the kernel's


class CannotIsolate(Exception):
    """It is not started, because it would not be isolated as asked; the message is a sentence for the operator.

    `retry` says whether the node may come to be able to.
    """

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.retry = retry


@dataclass(frozen=True, slots=True)
class Command:
    """How the engine's process is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class Isolator:
    """What one agent isolates by. By itself it has nothing, and refuses whoever asks for more."""

    work_dir: Path = Path("work")
    code: Path = CODE_ROOT
    capabilities: Callable[[], Mapping[str, Any]] = dict
    cdi_specs: Callable[[], Sequence[Mapping[str, Any]]] = list
    groups: Groups = field(default_factory=Groups)
    root: Path = Path("/")

    def command(self, row: DesiredInstance, devices: Sequence[GivenDevice], model: Path, command: Command) -> Command:
        """`command`, isolated as its row asks. Raises CannotIsolate."""
        asked = self.check(row, devices)
        env = {**command.env, **self._mps_variables(asked, row, devices)}
        argv, cwd = command.argv, command.cwd
        try:
            if asked.sandbox:
                cwd = self.work_dir.resolve() / str(row.instance_id)
                cwd.mkdir(parents=True, exist_ok=True, mode=0o700)
                argv = self._sandboxed(asked, row, devices, model, argv, env, cwd)
            if asked.cgroup:
                limits = Limits(host_bytes(row, devices), asked.cpu_cores)
                argv = (*ENTER, str(self.groups.make(row.instance_id, limits)), *argv)
        except (GroupRefused, NodesUnknown, UnfitFolder) as error:
            raise CannotIsolate(str(error), retry=True) from error
        except OSError as error:
            raise CannotIsolate(f"Its sandbox cannot be made: {error.strerror}.", retry=True) from error
        return Command(argv, env, cwd)

    def check(self, row: DesiredInstance, devices: Sequence[GivenDevice]) -> Isolation:
        """What the row asks for. Raises CannotIsolate where this node cannot do it."""
        try:
            asked = parse_isolation(row.isolation)
        except IsolationRefused as error:
            raise CannotIsolate(str(error), retry=False) from error
        gpus = [device for device in devices if device.kind == "gpu"]
        claimed = Claimed(
            on_nvidia=all(device.vendor == "nvidia" for device in gpus),
            gpus=len(gpus),
            share=row.share,
            host_bytes=host_bytes(row, devices),
        )
        if never := contradictions(asked, claimed):
            raise CannotIsolate(" ".join(never), retry=False)
        if now := refusals(asked, self.capabilities()):
            raise CannotIsolate(" ".join(now), retry=True)
        return asked

    def ended(self, instance_id: UUID) -> str:
        """Clear away what the process that ended left; returns what the kernel did to it, in a sentence."""
        return self.groups.remove(instance_id)

    def forget(self, instance_id: UUID) -> None:
        """Nothing of it will run again: its work folder goes too."""
        self.ended(instance_id)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.work_dir / str(instance_id))

    def _sandboxed(
        self,
        asked: Isolation,
        row: DesiredInstance,
        devices: Sequence[GivenDevice],
        model: Path,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        work: Path,
    ) -> tuple[str, ...]:
        shown = artefact_mounts(model)
        seen = {target for _, target in shown}
        others = [path for path in named_paths(argv) if not seen & {path, *path.parents}]
        for path in others:
            if path.resolve() in work.parents:
                raise CannotIsolate(f"It names {path}, which would show it what is others'.", retry=False)
        room = Room(
            work=work,
            read_only=(*program_paths(self.code), *others),
            shown=shown,
            devices=device_nodes(devices, specs=self.cdi_specs(), root=self.root),
            shared=(self._pipes(), _SHARED_MEMORY) if asked.mps else (),
        )
        entry = self.capabilities()[asked.sandbox]
        if asked.sandbox == "bubblewrap":
            return bubblewrap_argv(argv, room, bwrap=str(entry.get("path") or "bwrap"))
        bundle = work / "bundle"
        write_bundle(bundle, argv, dict(env), room)
        nvidia = any(device.vendor == "nvidia" for device in devices)
        name = f"gatehouse-{row.instance_id}-{row.fencing_token}"
        return gvisor_argv(bundle, name, runsc=str(entry.get("path") or "runsc"), nvidia=nvidia)

    def _mps_variables(self, asked: Isolation, row: DesiredInstance, devices: Sequence[GivenDevice]) -> dict[str, str]:
        if not asked.mps:
            return {}
        limits = mps_limits(asked, share=row.share, memory_bytes=row.memory_bytes)
        gpus = [device for device in devices if device.kind == "gpu"]
        # By number, in the order in which the engine sees its own devices.
        memory = ",".join(f"{number}={limits.memory_bytes >> 20}M" for number in range(len(gpus)))
        env = {"CUDA_MPS_PIPE_DIRECTORY": self._pipes(), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory}
        if limits.thread_percentage is not None:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.thread_percentage)
        return env

    def _pipes(self) -> str:
        entry = self.capabilities().get("mps")
        return str(entry.get("pipe_directory") or MPS_PIPES) if isinstance(entry, Mapping) else MPS_PIPES


def host_bytes(row: DesiredInstance, devices: Sequence[GivenDevice]) -> int:
    """What the row claims of the host's memory: beside its devices, and where the host is one of them."""
    return row.host_memory_bytes + sum(row.memory_bytes for device in devices if device.kind == "cpu")


NO_ISOLATION: Final = Isolator()
"""Of an agent that has not looked at what its node has: whoever asks for isolation is refused."""

"""Devices that a vendor's command line tools and driver files tell of, through one killable child."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from core.clock import Clock
from gpupool.discovery.base import Device, DeviceProcess, Inventory
from gpupool.discovery.child import ProbeChild, ProbeMissed
from gpupool.discovery.host import host_id
from gpupool.discovery.pci import PciGpu, pci_gpus
from gpupool.discovery.reading import stale
from gpupool.discovery.tool_plans import PLANS
from gpupool.discovery.tool_probe import ToolAnswer
from gpupool.discovery.tools import CODE_ROOT

_LOOK_AGAIN_SECONDS: Final = 60.0
_FORGET_SECONDS: Final = 150.0  # readings of a tool that has said nothing since
_MORE_PATHS: Final = ("/opt/rocm/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


@dataclass(slots=True)
class Told:
    """Everything that is known now: newest outputs by command, and the driver's files."""

    outputs: dict[str, str] = field(default_factory=dict)
    cards: list[dict[str, str]] = field(default_factory=list)
    processes: dict[str, tuple[DeviceProcess, ...]] = field(
        default_factory=dict
    )  # by PCI address, as the kernel counts
    identities: dict[str, str] = field(default_factory=dict)  # unique ids by PCI address, as they were said last


View = Callable[[Told, str], Sequence[Device]]
"""Makes devices of what was told; the second argument is the node's identity. Pure but for `identities`."""


class ToolSource:
    """GPUs of one vendor. Where there is neither a tool nor a GPU of the vendor, nothing is run."""

    def __init__(
        self,
        vendor: str,
        view: View,
        *,
        env: Mapping[str, str],
        clock: Clock,
        root: Path = Path("/"),
        argv: Sequence[str] | None = None,
        fleeting: Sequence[str] = (),
        deadline_seconds: float = 2.0,
        first_deadline_seconds: float = 15.0,
    ) -> None:
        """`env` is the child's whole environment. `fleeting` names commands whose old outputs mean nothing."""
        self._plan = PLANS[vendor]
        self._vendor = vendor
        self._view = view
        self._fleeting = frozenset(fleeting)
        path = ":".join(part for part in (env.get("PATH", ""), *_MORE_PATHS) if part) if root == Path("/") else ""
        self._path = path or env.get("PATH", "")
        self._child = ProbeChild(
            argv or (sys.executable, "-m", "gpupool.discovery.tool_probe", vendor, str(root)),
            env={**env, "PATH": self._path, "PYTHONPATH": str(CODE_ROOT), "LC_ALL": "C.UTF-8"},
            clock=clock,
            deadline_seconds=deadline_seconds,
            first_deadline_seconds=first_deadline_seconds,
        )
        self._clock = clock
        self._root = root
        self._node_id = host_id(root)
        self._told = Told()
        self._told_at: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._last = Inventory()
        self._rest_until: float | None = None

    @property
    def probe_pid(self) -> int | None:
        """The child that runs the tools, while there is one."""
        return self._child.pid

    async def probe(self) -> Inventory:
        now = self._clock.monotonic()
        if self._rest_until is not None and now < self._rest_until:
            return self._last
        if self._child.pid is None and not self._worth_a_look():
            return self._rest(self._nothing_reason())
        try:
            answer = msgspec.json.decode(await self._child.ask(), type=ToolAnswer)
        except ProbeMissed as error:
            return self._stale(f"{self._plan.title}'s tools were asked for GPUs: {error}")
        except msgspec.MsgspecError as error:
            return self._stale(f"{self._plan.title}'s probe gave an answer that cannot be read: {error}.")
        self._take(answer, now)
        devices = tuple(self._view(self._told, self._node_id))
        if devices:
            self._rest_until = None
            self._last = Inventory(devices, "")
            return self._last
        await self._child.close()  # no need to keep a process and to ask every second
        return self._rest(self._nothing_reason())

    async def close(self) -> None:
        await self._child.close()

    def _take(self, answer: ToolAnswer, now: float) -> None:
        for name, text in answer.outputs.items():
            self._told.outputs[name] = text
            self._told_at[name] = now
            self._failures.pop(name, None)
        self._failures.update(answer.failures)
        self._told.cards = answer.cards
        if answer.processes is not None:
            self._told.processes = answer.processes
        for name in [name for name in self._told.outputs if name.partition(" ")[0] in self._fleeting]:
            if now - self._told_at[name] > _FORGET_SECONDS:
                del self._told.outputs[name]

    def _rest(self, reason: str) -> Inventory:
        self._rest_until = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
        self._last = Inventory(tuple(stale(known, "unknown") for known in self._last.devices), reason)
        return self._last

    def _stale(self, reason: str) -> Inventory:
        self._last = Inventory(tuple(stale(known, "unknown") for known in self._last.devices), reason)
        return self._last

    def _worth_a_look(self) -> bool:
        return bool(self._installed()) or bool(self._on_the_bus())

    def _installed(self) -> list[str]:
        return [tool for tool in (*self._plan.tools, *self._plan.beside) if shutil.which(tool, path=self._path)]

    def _on_the_bus(self) -> list[PciGpu]:
        return [gpu for gpu in pci_gpus(self._root) if gpu.vendor == self._vendor]

    def _nothing_reason(self) -> str:
        """A sentence for an operator who expected a GPU."""
        title, tools = self._plan.title, " or ".join(self._plan.tools)
        if here := self._on_the_bus():
            addresses = ", ".join(gpu.address for gpu in here)
            why = f"its driver tells nothing of it: is {tools} installed?"
            if all(not gpu.driver for gpu in here):
                why = f"no driver is bound to it: load {self._plan.driver}."
            return f"A GPU of {title} is on the PCI bus ({addresses}), but {why}"
        if self._failures:
            name, why = next(iter(self._failures.items()))
            return f"No {title} GPU was found; {self._tool_of(name)} said: {why}."
        return f"No {title} GPU was found: none is on the PCI bus, and {tools} tells of none."

    def _tool_of(self, command: str) -> str:
        for tool, commands in {**self._plan.tools, **self._plan.beside}.items():
            if command.partition(" ")[0] in commands:
                return f"{tool} {command}"
        return command

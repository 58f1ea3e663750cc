"""Which command line tools tell of which vendor's GPUs, and how often they are asked."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_SLOWLY: Final = 300.0  # what changes with a reboot or by an operator's hand
_NOW_AND_THEN: Final = 15.0  # what changes by itself
_SELDOM: Final = 60.0


@dataclass(frozen=True, slots=True)
class Command:
    """One call of a tool. `every_seconds` is the least time between the starts of two."""

    argv: tuple[str, ...]
    every_seconds: float = _NOW_AND_THEN

    def pause(self, *, beside_files: bool) -> float:
        """Seconds. These tools cost a second of a processor each time: where a driver's files tell of what moves, they
        are asked seldom."""
        return max(self.every_seconds, _SELDOM) if beside_files else self.every_seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done for one vendor: the first tool that is installed is used, and those that stand beside any."""

    title: str
    pci_vendor: str  # as in sysfs
    driver: str  # the kernel's, in words
    tools: Mapping[str, Mapping[str, Command]]
    beside: Mapping[str, Mapping[str, Command]]

    def commands(self, path: str) -> dict[str, Command]:
        """Commands to run, by name, with the tools that are found on this PATH."""
        chosen: dict[str, Command] = {}
        for tool, commands in self.tools.items():
            if shutil.which(tool, path=path):
                chosen.update(commands)
                break
        for tool, commands in self.beside.items():
            if shutil.which(tool, path=path):
                chosen.update(commands)
        return chosen


def _each(tool: str, **commands: tuple[tuple[str, ...], float]) -> Mapping[str, Command]:
    return {name: Command((tool, *arguments), every) for name, (arguments, every) in commands.items()}


PLANS: Final[Mapping[str, Plan]] = MappingProxyType(
    {
        "amd": Plan(
            title="AMD",
            pci_vendor="0x1002",
            driver="amdgpu",
            tools={
                "amd-smi": _each(
                    "amd-smi",
                    list=(("list", "--json"), _SLOWLY),
                    static=(("static", "--json"), _SLOWLY),
                    partition=(("partition", "--json"), _SLOWLY),
                    topology=(("topology", "--json"), _SLOWLY),
                    metric=(("metric", "--json"), _NOW_AND_THEN),
                    process=(("process", "--json"), _NOW_AND_THEN),
                ),
                "rocm-smi": _each("rocm-smi", rocm=(("-a", "--showmeminfo", "all", "--showtopo", "--json"), 15.0)),
            },
            beside={"rocminfo": _each("rocminfo", rocminfo=((), _SLOWLY))},
        ),
        "intel": Plan(
            title="Intel",
            pci_vendor="0x8086",
            driver="i915 or xe",
            tools={
                "xpu-smi": _each(
                    "xpu-smi",
                    discovery=(("discovery", "-j"), _SLOWLY),
                    matrix=(("topology", "-m"), _SLOWLY),
                ),
            },
            beside={"intel_gpu_top": _each("intel_gpu_top", top=(("-J", "-s", "500", "-n", "2"), _NOW_AND_THEN))},
        ),
    }
)

MOST_DEVICES: Final = 64


def follow_ups(vendor: str, outputs: Mapping[str, str]) -> dict[str, Command]:
    """Commands that need an answer first: xpu-smi tells details and readings of one device at a time."""
    if vendor != "intel":
        return {}
    from gpupool.discovery.xpu_smi import device_ids

    commands: dict[str, Command] = {}
    for number in device_ids(outputs.get("discovery", ""))[:MOST_DEVICES]:
        commands[f"detail {number}"] = Command(("xpu-smi", "discovery", "-d", str(number), "-j"), _SLOWLY)
        commands[f"stats {number}"] = Command(("xpu-smi", "stats", "-d", str(number), "-j"), _NOW_AND_THEN)
        commands[f"topology {number}"] = Command(("xpu-smi", "topology", "-d", str(number), "-j"), _SLOWLY)
    return commands

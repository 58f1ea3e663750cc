"""What a container's manifest asks of GPUs, in the words of its resources, as a request for a lease. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpupool.policies.version_needs import LARGEST_BYTES, MOST_DEVICES

GPU_MEMORY: Final = "nvidia.com/gpu-memory"
"""No such resource exists upstream; people write it, so it is understood: memory of each GPU."""
GPU_COUNTS: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")

_QUANTITY: Final = re.compile(r"^(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)(?P<unit>[kKmMgGtT]?)(?P<binary>i?)[bB]?$")
_STEPS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class ResourcesRefused(ValueError):
    """The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Asked:
    """None where nothing was said."""

    devices: int | None = None
    memory_bytes: int | None = None  # of each


def parse_quantity(text: str) -> int:
    """Bytes of `2g`, `2Gi`, `1.5G`, `4096`.

    Small letters are Docker's and binary, as is `i`; capitals alone are Kubernetes' and decimal.
    Raises ResourcesRefused.
    """
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise ResourcesRefused(f"{text!r} is no amount of memory: write it like 2g, 2Gi or a number of bytes.")
    unit = match["unit"]
    if match["binary"] and not unit:
        raise ResourcesRefused(f"{text!r} is no amount of memory: write it like 2g, 2Gi or a number of bytes.")
    base = 1024 if match["binary"] or unit.islower() else 1000
    return int(Fraction(match["number"]) * base ** _STEPS[unit.lower()])


def parse_resources(asked: Mapping[str, object]) -> Asked:
    """Raises ResourcesRefused, naming the resource."""
    devices = memory = None
    for name, value in asked.items():
        if name == GPU_MEMORY:
            memory = parse_quantity(str(value))
            if not 1 <= memory <= LARGEST_BYTES:
                raise ResourcesRefused(f"{GPU_MEMORY} is more than nothing, and no more than a device can have.")
        elif name in GPU_COUNTS:
            if devices is not None:
                raise ResourcesRefused("An instance has GPUs of one vendor: name one of them.")
            devices = _count(name, value)
        else:
            raise ResourcesRefused(
                f"{name!r} is no resource that is understood here: {', '.join((GPU_MEMORY, *GPU_COUNTS))} are."
            )
    return Asked(devices, memory)


def _count(name: str, value: object) -> int:
    text = str(value).strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MOST_DEVICES:
        raise ResourcesRefused(f"{name} is a whole number from 1 to {MOST_DEVICES}.")
    return int(text)

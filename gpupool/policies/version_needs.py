"""What one instance of a version needs beside its memory, and which of it makes no sense. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupool.policies.isolation import IsolationRefused, parse_isolation

TOPOLOGIES: Final = ("required", "preferred", "any")
STRATEGIES: Final = ("spread", "pack")
PRECISIONS: Final = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")
PRIORITIES: Final = (-1, 0, 1)
MOST_DEVICES: Final = 64
LARGEST_BYTES: Final = 2**62
LONGEST_TAG: Final = 80
_LARGEST_MB: Final = 2**31 - 1
_LONGEST_SECONDS: Final = 86_400.0 * 366
_SHAPE: Final[Mapping[str, int]] = {"batch": 1_000_000, "sequence_length": 100_000_000}


@dataclass(frozen=True, slots=True)
class VersionNeeds:
    """Fields of a version's row, by the same names."""

    host_memory_bytes: int = 0  # claimed of the host, too
    devices: int = 1
    share: float | None = None  # of each device's compute, above 0, at most 1; None: not limited
    whole_device: bool = False
    topology: str = "preferred"
    strategy: str = "spread"
    gpu_tag: str = ""
    mem_limit_mb: int | None = None  # at most so much of each device may be claimed; None: 32,768 with a tag, else all
    priority: int = 0
    isolation: Mapping[str, Any] = field(default_factory=dict)
    request_shape: Mapping[str, Any] = field(default_factory=dict)
    idle_sleep_seconds: float | None = None
    device_seconds: float | None = None


def fault(needs: VersionNeeds, *, device_kind: str) -> tuple[str, str] | None:
    """The first field that makes no sense, and why, as a sentence."""
    found = _number_fault(needs) or _word_fault(needs) or shape_fault(needs.request_shape)
    if found is not None:
        return found
    if device_kind == "cpu" and (needs.devices > 1 or needs.gpu_tag or needs.share is not None):
        return "device_kind", "An instance on the host's processor has one device, without a tag and a share."
    if needs.whole_device and needs.share is not None:
        return "share", "A device that is nobody else's is not shared: leave the share out."
    try:
        parse_isolation(needs.isolation)
    except IsolationRefused as error:
        return "isolation", str(error)
    return None


def _number_fault(needs: VersionNeeds) -> tuple[str, str] | None:
    if not 0 <= needs.host_memory_bytes <= LARGEST_BYTES:
        return "host_memory_bytes", "A size in bytes is not negative."
    if not 1 <= needs.devices <= MOST_DEVICES:
        return "devices", f"An instance has 1 to {MOST_DEVICES} devices."
    if needs.share is not None and not 0 < needs.share <= 1:
        return "share", "A share of a device's compute is above 0 and at most 1."
    if needs.mem_limit_mb is not None and not 1 <= needs.mem_limit_mb <= _LARGEST_MB:
        return "mem_limit_mb", f"A limit of a device's memory is 1 to {_LARGEST_MB} MB."
    if needs.priority not in PRIORITIES:
        return "priority", "A priority is -1 (low), 0 or 1 (high)."
    for name in ("idle_sleep_seconds", "device_seconds"):
        seconds: float | None = getattr(needs, name)
        if seconds is not None and not 0 < seconds <= _LONGEST_SECONDS:
            return name, "It is a number of seconds above 0, within a year."
    return None


def _word_fault(needs: VersionNeeds) -> tuple[str, str] | None:
    if needs.topology not in TOPOLOGIES:
        return "topology", f"The topology is one of {', '.join(TOPOLOGIES)}."
    if needs.strategy not in STRATEGIES:
        return "strategy", f"The strategy is one of {', '.join(STRATEGIES)}."
    if len(needs.gpu_tag) > LONGEST_TAG or (needs.gpu_tag and not needs.gpu_tag.isprintable()):
        return "gpu_tag", f"A tag has at most {LONGEST_TAG} printable characters."
    return None


def shape_fault(shape: Mapping[str, Any]) -> tuple[str, str] | None:
    """What makes no sense of a request's shape, as `fault` says it."""
    for name, value in shape.items():
        if name == "precision":
            if value not in PRECISIONS:
                return "request_shape", f"A precision is one of {', '.join(PRECISIONS)}."
        elif name not in _SHAPE:
            return (
                "request_shape",
                f"A request's shape is batch, sequence_length and precision; not {str(name)[:80]!r}.",
            )
        elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _SHAPE[name]:
            return "request_shape", f"{name} is a whole number from 1 to {_SHAPE[name]}."
    return None

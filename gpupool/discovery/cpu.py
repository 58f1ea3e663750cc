"""What the host's CPU computes, by the words of /proc/cpuinfo."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpupool.discovery.base import Capability

_PRECISION_FLAGS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"}),
        "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp", "fphp"}),
        "int8": frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "i8mm", "asimddp", "svei8mm"}),
    }
)
_TAG_FLAGS: Final[tuple[tuple[str, str], ...]] = (
    ("avx2", "avx2"), ("avx512f", "avx512"), ("amx_tile", "amx"), ("asimd", "neon"), ("sve", "sve"), ("sve2", "sve2"),
    ("sme", "sme"),
)  # fmt: skip
_MATRIX_FLAGS: Final = frozenset({"amx_tile", "sme"})


@dataclass(frozen=True, slots=True)
class Processor:
    """Flags as the kernel names them: `flags` of x86, `Features` of ARM."""

    flags: frozenset[str] = frozenset()
    sockets: int | None = None


def processor(cpuinfo: str) -> Processor:
    """Of the first core; empty where there is no /proc/cpuinfo."""
    flags: frozenset[str] = frozenset()
    sockets: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        key = name.strip().lower()
        if key in ("flags", "features") and not flags:
            flags = frozenset(value.split())
        elif key == "physical id":
            sockets.add(value.strip())
    return Processor(flags, len(sockets) or None)


def capability(known: Processor, *, machine: str, cores: int) -> Capability:
    """Precisions that have instructions of their own. Half the width is also computed where it has none, slowly."""
    precisions = {"fp64", "fp32"} if known.flags else set()
    precisions |= {name for name, flags in _PRECISION_FLAGS.items() if known.flags & flags}
    return Capability(
        architecture=machine,
        precisions=frozenset(precisions),
        tensor_cores=bool(known.flags & _MATRIX_FLAGS) if known.flags else None,
        compute_units=cores,
    )


def tags(known: Processor) -> tuple[str, ...]:
    """Instruction sets that engines are built for: avx2, avx512, amx, neon, sve, sme."""
    return tuple(tag for flag, tag in _TAG_FLAGS if flag in known.flags)

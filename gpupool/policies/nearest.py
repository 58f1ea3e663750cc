"""Which type of instance suits requests of a shape: the nearest of those that can carry it. Pure.

A request's shape is its batch, its sequence length and its precision. Nearest alone would choose what is too small, so
types that cannot carry the shape are left out first, each with a reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log2
from typing import Final

from gpupool.policies.lease import describe_bytes

PRECISION_WEIGHT: Final = {"fp16": 1.0, "bf16": 1.0, "fp32": 2.0, "fp8": 0.5, "int8": 0.5, "int4": 0.25}
"""Memory of a number against one of 16 bits."""
PRECISION_SPEED: Final = {"fp16": 1.0, "bf16": 1.0, "fp32": 0.5, "fp8": 1.0, "int8": 1.0, "int4": 1.0}
"""Share of a type's peak that is reached; 8 bits are counted as 16: not every type has them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked: sequences at once, tokens of each, and the numbers' precision."""

    batch: int
    sequence_length: int
    precision: str = "fp16"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What one device of a kind is good for, at 16 bits. `peak_tflops` dense."""

    name: str
    memory_bytes: int
    peak_tflops: float
    batch: int
    sequence_length: int
    precisions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Nearest:
    """`distance` is 0 for a shape that is the type's own; `passed_over` says why nearer ones were not taken."""

    type: InstanceType
    distance: float
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoneFeasible:
    reasons: tuple[str, ...]


_HALF: Final = frozenset({"fp32", "fp16", "int8"})
_AMPERE: Final = _HALF | {"bf16", "int4"}
TYPES: Final = (
    InstanceType("V100", 32 << 30, 125.0, 128, 2048, _HALF),
    InstanceType("A10", 24 << 30, 31.2, 64, 2048, _AMPERE),
    InstanceType("A100", 80 << 30, 312.0, 256, 4096, _AMPERE),
)
"""A10 and A100 as the papers have them; the V100's batch and length, which they leave out, are ours."""


def nearest_type(shape: Shape, *, memory_bytes: int = 0) -> Nearest | NoneFeasible:
    """The nearest type that can carry the shape and hold `memory_bytes`."""
    reasons = {one.name: why_infeasible(shape, one, memory_bytes=memory_bytes) for one in TYPES}
    feasible = [one for one in TYPES if reasons[one.name] is None]
    if not feasible:
        return NoneFeasible(tuple(reason for reason in reasons.values() if reason is not None))
    best = min(feasible, key=lambda one: (distance(shape, one), one.name))
    reach = distance(shape, best)
    nearer = [one.name for one in TYPES if reasons[one.name] is not None and distance(shape, one) <= reach]
    return Nearest(best, reach, tuple(reason for name in nearer if (reason := reasons[name]) is not None))


def why_infeasible(shape: Shape, kind: InstanceType, *, memory_bytes: int = 0) -> str | None:
    """A sentence's end; None for a type that can carry the shape."""
    if shape.precision not in PRECISION_WEIGHT:
        return f"the precision {shape.precision} is not known"
    if shape.precision not in kind.precisions and PRECISION_WEIGHT[shape.precision] >= 1.0:
        return f"an {kind.name} does not compute in {shape.precision}"
    if memory_bytes > kind.memory_bytes:
        return f"an {kind.name} has {describe_bytes(kind.memory_bytes)}, and {describe_bytes(memory_bytes)} are needed"
    wanted = shape.batch * shape.sequence_length * PRECISION_WEIGHT[shape.precision]
    if wanted > kind.batch * kind.sequence_length:
        return (
            f"an {kind.name} is for {kind.batch} x {kind.sequence_length} tokens at 16 bits, "
            f"not for {shape.batch} x {shape.sequence_length} in {shape.precision}"
        )
    return None


def distance(shape: Shape, kind: InstanceType) -> float:
    """How many doublings lie between the shape and the type's own."""
    weight = PRECISION_WEIGHT.get(shape.precision, 1.0)
    speed = PRECISION_SPEED.get(shape.precision, 1.0)
    return hypot(
        log2(shape.batch / kind.batch), log2(shape.sequence_length / kind.sequence_length), log2(weight), log2(speed)
    )


def type_of(device_name: str, tags: Sequence[str] = ()) -> InstanceType | None:
    """The type that a device is of, by the words of its name and tags; None of none that is known."""
    words = {word for text in (device_name, *tags) for word in re.split(r"[^A-Za-z0-9]+", text.upper())}
    return next((one for one in TYPES if one.name in words), None)

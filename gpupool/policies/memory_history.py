"""A device's memory over time: what is kept of it each minute, and the series that are made of that."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from gpupool.policies.memory_fit import fit_sums
from gpupool.policies.memory_tree import SEGMENTS, MemoryTree
from gpupool.policies.memory_view import gpus_of

Parts = Mapping[str, str]
"""MiB of each of COLUMNS, joined by commas, by the id of the tenant (or `shared`); under "" what is no instance's.

As text, for there are many rows: a list of numbers takes four times as much in jsonb.
"""

CLAIMED: Final = "claimed"
COLUMNS: Final = (
    CLAIMED, "weights", "kv_used", "kv_free", "activations", "unused", "other", "free", "lora", "unknown",
)  # fmt: skip
"""What is kept, in its place in a row; zeros at the end of it are left out."""

RANGES: Final[Mapping[str, tuple[timedelta, timedelta]]] = {
    "15m": (timedelta(minutes=15), timedelta(minutes=1)),
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=2)),
    "24h": (timedelta(hours=24), timedelta(minutes=5)),
}
"""How far back, and in what steps."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One device at one minute."""

    device_id: str
    size_mib: int | None
    parts: Parts


def samples_of(tree: MemoryTree) -> Iterator[Sample]:
    """What is kept of each device, of a tree that is not fitted: what a tenant sees of it says nothing of others."""
    for gpu in gpus_of(tree):
        parts: dict[str, dict[str, int]] = {}
        tenant, ordinal = "", gpu.first
        for at in gpu.nodes:
            parent, kind, key, _, extra = tree.nodes[at]
            if kind == "tenant":
                tenant = key
            elif kind == "instance":
                own = parts.setdefault(tenant, {})
                own[CLAIMED] = own.get(CLAIMED, 0) + int(extra.get("claimed", 0))
            else:
                own = parts.setdefault("" if parent == gpu.at else tenant, {})
                own[extra["seg"]] = own.get(extra["seg"], 0) + tree.values[ordinal]
                ordinal += 1
        _, _, key, _, extra = tree.nodes[gpu.at]
        yield Sample(key, extra.get("size"), {owner: _packed(part) for owner, part in parts.items()})


def _packed(part: Mapping[str, int]) -> str:
    row = [part.get(name, 0) for name in COLUMNS]
    while row and not row[-1]:
        row.pop()
    return ",".join(map(str, row))


def _unpacked(row: str) -> list[int]:
    return [int(mib) for mib in row.split(",")] if row else []


def shown_to(tenant_id: str | None, sample: Sample) -> dict[str, int] | None:
    """MiB by segment: of everything, or as one tenant may see it. None where it had nothing there."""
    sums: dict[str, int] = {}
    if tenant_id is None:
        for part in sample.parts.values():
            for name, mib in zip(COLUMNS[1:], _unpacked(part)[1:], strict=False):
                sums[name] = sums.get(name, 0) + mib
        fit_sums(sums, sample.size_mib)
        return sums
    if tenant_id not in sample.parts:
        return None
    own = _unpacked(sample.parts[tenant_id])
    sums = dict(zip(COLUMNS[1:], own[1:], strict=False))
    fit_sums(sums, sample.size_mib)
    mine = sum(sums.values())
    others = sum(sum(_unpacked(part)[:1]) for key, part in sample.parts.items() if key not in ("", tenant_id))
    sums["reserved"] = others if sample.size_mib is None else min(others, max(0, sample.size_mib - mine))
    if sample.size_mib is not None:
        sums["free"] = max(0, sample.size_mib - mine - others)
    return sums


@dataclass(frozen=True, slots=True)
class Series:
    """MiB by segment, step by step from `start`; None where nothing was kept."""

    start: datetime
    step: timedelta
    values: Mapping[str, list[int | None]]


def series_of(
    samples: Iterable[tuple[datetime, Mapping[str, int] | None]], *, start: datetime, step: timedelta, steps: int
) -> Series:
    """The mean of each step; segments in the order in which they are stacked."""
    sums: list[dict[str, int]] = [{} for _ in range(steps)]
    counts = [0] * steps
    for at, parts in samples:
        place = (at - start) // step
        if parts is None or not 0 <= place < steps:
            continue
        counts[place] += 1
        for name, mib in parts.items():
            sums[place][name] = sums[place].get(name, 0) + mib
    names = [name for name in SEGMENTS if any(name in one for one in sums)]
    values: dict[str, list[Any]] = {
        name: [round(one.get(name, 0) / count) if count else None for one, count in zip(sums, counts, strict=True)]
        for name in names
    }
    return Series(start, step, values)

"""Requests as pages show them: a row of the ledger with the names of what it names, and its time cut into stages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.models import ModelVersion
from tenants.models import ApiKey, Tenant, UsageRecord


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a request's time: where it begins, and how long it takes, in milliseconds."""

    name: str  # of labels.STAGES
    start: float
    ms: float


@dataclass(frozen=True, slots=True)
class Line:
    """One request. What it names may be gone: None."""

    row: UsageRecord
    tenant: Tenant | None
    key: ApiKey | None
    stages: Sequence[Stage]

    @property
    def tpot_ms(self) -> float | None:
        return tpot_ms(self.row)


def tpot_ms(row: UsageRecord) -> float | None:
    """Between two output tokens after the first, on average."""
    tokens = row.output_tokens
    if row.ttft_ms is None or row.duration_ms is None or tokens is None or tokens < 2:
        return None
    return max(0.0, row.duration_ms - row.ttft_ms) / (tokens - 1)


def stages_of(row: UsageRecord) -> list[Stage]:
    """The stages that were measured, one after the other; what was not measured leaves a gap."""
    found: list[Stage] = []
    whole = row.duration_ms
    queue, connect = row.queue_ms, row.connect_ms

    def add(name: str, start: float, end: float | None) -> float:
        if end is None:
            return start
        if end > start:
            found.append(Stage(name, start, end - start))
        return max(start, end)

    at = add(
        "tokenise", 0.0, min(row.tokenise_ms, queue) if row.tokenise_ms is not None and queue is not None else None
    )
    at = add("queue", at, queue)
    if queue is not None and connect is not None:
        at = add("connect", at, queue + connect)
    if row.ttft_ms is None:
        if queue is not None and connect is not None:
            add("answer", at, whole)
        return found
    measured = queue is not None and connect is not None  # else it is not known how much was prefill
    at = add("prefill", at, row.ttft_ms) if measured else max(at, row.ttft_ms)
    if row.first_decode_ms is not None:
        at = add("first_decode", at, row.ttft_ms + row.first_decode_ms)
    add("decode", at, whole)
    return found


def lines_of(rows: Iterable[UsageRecord]) -> list[Line]:
    """With their names; two queries."""
    rows = list(rows)
    tenants = Tenant.objects.in_bulk({row.tenant_id for row in rows})
    keys = ApiKey.objects.in_bulk({row.key_id for row in rows} - {None})
    return [
        Line(row, tenants.get(row.tenant_id), keys.get(row.key_id) if row.key_id else None, stages_of(row))
        for row in rows
    ]


def longest_ms(lines: Sequence[Line]) -> float:
    """By which bars of a page are drawn."""
    return max((line.row.duration_ms or 0.0 for line in lines), default=0.0) or 1.0


def version_name(version_id: UUID | None) -> str:
    """What a version is called; "" where it is unknown or gone."""
    if version_id is None:
        return ""
    return ModelVersion.objects.filter(pk=version_id).values_list("name", flat=True).first() or ""

"""Where requests spent their time, by stage: from the newest rows of the ledger, a bounded sample of them.

Stages do not overlap: tokenise (an engine counted the prompt), queue (the rest until it was handed to an endpoint),
connect, prefill (until the first content), first decode (until the second), decode (the rest). The stages after the
connection are known of streamed answers alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connection

from core.ids import uuid7_from

STAGES: Final = ("tokenise", "queue", "connect", "prefill", "first_decode", "decode")
MODELS: Final = 12
SAMPLE: Final = 1_000
"""Requests of each model that are looked at, the newest; of a tenant so many for each of MODELS, all together."""

SLOWEST: Final = 0.01


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Milliseconds under which half, 90 % and 99 % stayed; `known` is of how many it was measured."""

    known: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ModelStages:
    model: str
    sampled: int
    since: datetime  # the oldest of the sample
    stages: Sequence[tuple[str, Quantiles]]


@dataclass(frozen=True, slots=True)
class Flame:
    """Mean milliseconds of each stage: of all streamed requests of the sample, and of the slowest of them."""

    requests: int
    slowest: int
    from_ms: float  # how long the fastest of the slowest took
    all_ms: Sequence[tuple[str, float]]
    slow_ms: Sequence[tuple[str, float]]


_COLUMNS: Final = "model, outcome, started_at, duration_ms, ttft_ms, queue_ms, tokenise_ms, connect_ms, first_decode_ms"
_OF_ALL: Final = (
    "sample AS (SELECT found.* FROM unnest(%(models)s::text[]) AS asked(name), LATERAL ("  # noqa: S608  # names of ours
    f"SELECT {_COLUMNS} FROM tenants_usagerecord AS record WHERE record.model = asked.name AND id >= %(low)s "
    "AND id < %(high)s ORDER BY id DESC LIMIT %(most)s) AS found)"
)
_OF_TENANT: Final = (
    f"sample AS (SELECT {_COLUMNS} FROM tenants_usagerecord WHERE tenant_id = %(tenant)s AND id >= %(low)s "  # noqa: S608
    "AND id < %(high)s ORDER BY id DESC LIMIT %(all)s)"
)
_STAGED: Final = """
staged AS (SELECT model, started_at, duration_ms,
    outcome = 'success' AND ttft_ms IS NOT NULL AND queue_ms IS NOT NULL AND connect_ms IS NOT NULL AS whole,
    tokenise_ms AS tokenise,
    greatest(0, queue_ms - coalesce(tokenise_ms, 0)) AS queue,
    connect_ms AS connect,
    CASE WHEN ttft_ms IS NOT NULL AND queue_ms IS NOT NULL AND connect_ms IS NOT NULL
        THEN greatest(0, ttft_ms - queue_ms - connect_ms) END AS prefill,
    first_decode_ms AS first_decode,
    CASE WHEN ttft_ms IS NOT NULL AND duration_ms IS NOT NULL
        THEN greatest(0, duration_ms - ttft_ms - coalesce(first_decode_ms, 0)) END AS decode
    FROM sample)
"""
_QUANTILES: Final = ", ".join(
    f"count({stage}), percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (ORDER BY {stage})" for stage in STAGES
)
_TABLE: Final = f"SELECT model, count(*), min(started_at), {_QUANTILES} FROM staged GROUP BY model ORDER BY 2 DESC, 1"  # noqa: S608
_MEANS: Final = ", ".join(f"coalesce(avg(coalesce({stage}, 0)), 0)" for stage in STAGES)
_SLOW_MEANS: Final = ", ".join(
    f"coalesce(avg(coalesce({stage}, 0)) FILTER (WHERE place <= greatest(1, ceil(whole_count * {SLOWEST}))), 0)"
    for stage in STAGES
)
_FLAME: Final = (
    f"SELECT count(*), max(greatest(1, ceil(whole_count * {SLOWEST}))), "  # noqa: S608  # names of our own
    f"min(duration_ms) FILTER (WHERE place <= greatest(1, ceil(whole_count * {SLOWEST}))), {_MEANS}, {_SLOW_MEANS} "
    "FROM (SELECT *, row_number() OVER (ORDER BY duration_ms DESC) AS place, count(*) OVER () AS whole_count "
    "FROM staged WHERE whole AND duration_ms IS NOT NULL) AS ranked"
)


@dataclass(frozen=True, slots=True)
class _Sample:
    text: str
    values: dict[str, Any]


def _sample(*, since: datetime, until: datetime, models: Sequence[str], tenant_id: UUID | None, most: int) -> _Sample:
    values: dict[str, Any] = {
        "models": list(models)[:MODELS],
        "tenant": tenant_id,
        "low": uuid7_from(int(since.timestamp() * 1000)),
        "high": uuid7_from(int(until.timestamp() * 1000)),
        "most": most,
        "all": most * MODELS,
    }
    return _Sample(f"WITH {_OF_ALL if tenant_id is None else _OF_TENANT}, {_STAGED} ", values)


def stage_table(
    *, since: datetime, until: datetime, models: Sequence[str], tenant_id: UUID | None = None, most: int = SAMPLE
) -> list[ModelStages]:
    """Each model's stages; `models` are those to look at, where it is not one tenant's requests that are asked for."""
    sample = _sample(since=since, until=until, models=models, tenant_id=tenant_id, most=most)
    with connection.cursor() as cursor:
        cursor.execute(sample.text + _TABLE, sample.values)
        return [
            ModelStages(
                row[0],
                row[1],
                row[2],
                [
                    (stage, Quantiles(row[3 + 2 * place], *(row[4 + 2 * place] or (None, None, None))))
                    for place, stage in enumerate(STAGES)
                ],
            )
            for row in cursor.fetchall()
        ]


def latency_flame(
    *, since: datetime, until: datetime, models: Sequence[str], tenant_id: UUID | None = None, most: int = SAMPLE
) -> Flame | None:
    """The slowest percent of the streamed requests of the sample, by stage; None where there are none."""
    sample = _sample(since=since, until=until, models=models, tenant_id=tenant_id, most=most)
    with connection.cursor() as cursor:
        cursor.execute(sample.text + _FLAME, sample.values)
        row = cursor.fetchone()
    if not row or not row[0]:
        return None
    stages = len(STAGES)
    everybody, slow = row[3 : 3 + stages], row[3 + stages :]
    return Flame(
        row[0],
        int(row[1]),
        row[2],
        list(zip(STAGES, map(float, everybody), strict=True)),
        list(zip(STAGES, map(float, slow), strict=True)),
    )

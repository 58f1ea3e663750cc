"""How long engines take between two tokens, as measured of the requests that went through."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from core.telemetry import buckets
from gpupool.models import ModelVersion
from tenants.models import ModelLatencyHour

SPAN: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class StreamDelay:
    """Between two output tokens, over all versions of an engine, in milliseconds."""

    median_ms: float
    p99_ms: float | None
    requests: int


def stream_delays(now: datetime) -> Mapping[str, StreamDelay]:
    """By engine, of the last SPAN in whole hours; an engine of which nothing streamed is not there. Two queries."""
    rows = ModelLatencyHour.objects.filter(hour__gt=now - SPAN, version_id__isnull=False)
    counts = list(rows.values_list("version_id", "tpot"))
    engines = dict(ModelVersion.objects.filter(pk__in={pk for pk, _ in counts}).values_list("pk", "engine"))
    sums: dict[str, list[int]] = {}
    for version_id, tpot in counts:
        engine = engines.get(version_id) if version_id is not None else None
        if engine is None or not tpot:
            continue
        so_far = sums.setdefault(engine, [0] * (len(buckets.TPOT) + 1))
        for place, number in enumerate(tpot[: len(so_far)]):
            so_far[place] += number
    found: dict[str, StreamDelay] = {}
    for engine, places in sums.items():
        median, slow = buckets.quantile(buckets.TPOT, places, 0.5), buckets.quantile(buckets.TPOT, places, 0.99)
        if median is not None:
            found[engine] = StreamDelay(median * 1000, None if slow is None else slow * 1000, sum(places))
    return found

"""Traffic for objectives, as the ledger's drain would have left it in the rollups."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import models

from core.telemetry import buckets
from gateway.models import Objective
from gateway.services.objective_tallies import tally_objectives
from gateway.services.objectives import create_objective
from tenants.actor import SYSTEM
from tenants.models import (
    LatencyHour,
    LatencyMinute,
    ModelLatencyHour,
    ModelLatencyMinute,
    RefusalMinute,
    Tenant,
)

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
FAST, SLOW = 0.3, 4.0


def counts(bounds: Sequence[float], seen: Iterable[tuple[float, int]]) -> list[int]:
    """An array of a rollup: so many requests that took so long."""
    found = [0] * (len(bounds) + 1)
    for seconds, requests in seen:
        found[buckets.bucket_of(tuple(bounds), seconds)] += requests
    return found


def traffic(
    tenant: Tenant | UUID,
    *,
    since: datetime,
    until: datetime,
    step: timedelta = timedelta(minutes=1),
    requests: int = 10,
    slow: int = 0,
    faults: int = 0,
    cancelled: int = 0,
    model: str = "chat-large",
    version_id: UUID | None = None,
) -> None:
    """In each minute from `since`, every `step`: so many requests, `slow` of them with a late first token."""
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    minutes, hours = [], dict[datetime, int]()
    moment = since
    while moment < until:
        minutes.append(moment)
        hour = moment.replace(minute=0, second=0, microsecond=0)
        hours[hour] = hours.get(hour, 0) + 1
        moment += step

    def sums(times: int) -> dict[str, Any]:
        answered = (requests - faults - cancelled) * times
        late = min(slow * times, answered)
        return {
            "model": model,
            "version_id": version_id,
            "requests": requests * times,
            "failures": faults * times,
            "faults": faults * times,
            "cancelled": cancelled * times,
            "ttft": counts(buckets.TTFT, [(FAST, answered - late), (SLOW, late)]),
            "tpot": counts(buckets.TPOT, [(0.02, answered)]),
            "queue": counts(buckets.QUEUE, [(0.003, answered)]),
            "duration": counts(buckets.DURATION, [(2.0, answered)]),
        }

    once = sums(1)
    _add(LatencyMinute, "minute", dict.fromkeys(minutes, once), tenant_id=tenant_id)
    _add(ModelLatencyMinute, "minute", dict.fromkeys(minutes, once))
    of_hours = {hour: sums(times) for hour, times in hours.items()}
    _add(LatencyHour, "hour", of_hours, tenant_id=tenant_id)
    _add(ModelLatencyHour, "hour", of_hours)


_COUNTS = ("requests", "failures", "faults", "cancelled")
_ARRAYS = ("ttft", "tpot", "queue", "duration")


def _add(rows: type[models.Model], at: str, sums: dict[datetime, dict[str, Any]], **scope: Any) -> None:
    """To what is there already."""
    one = next(iter(sums.values()))
    scope |= {"model": one["model"], "version_id": one["version_id"]}
    there = {getattr(row, at): row for row in rows._default_manager.filter(**{f"{at}__in": list(sums)}, **scope)}
    new = [rows(**{at: moment}, **(values | scope)) for moment, values in sums.items() if moment not in there]
    rows._default_manager.bulk_create(new)
    for moment, row in there.items():
        for name in _COUNTS:
            setattr(row, name, getattr(row, name) + sums[moment][name])
        for name in _ARRAYS:
            setattr(row, name, [a + b for a, b in zip(getattr(row, name), sums[moment][name], strict=True)])
    rows._default_manager.bulk_update(there.values(), [*_COUNTS, *_ARRAYS])


def refusals(
    at: datetime, count: int, *, status: int = 503, tenant: Tenant | None = None, model: str = "chat-large"
) -> None:
    RefusalMinute.objects.create(
        tenant_id=tenant.pk if tenant else None,
        model=model,
        code="no_ready_instance" if status == 503 else "rate_limit_exceeded",
        status=status,
        minute=at,
        refusals=count,
    )


def ttft_objective(**values: object) -> Objective:
    told: dict[str, object] = {
        "name": "chat-large · TTFT" if not (there := Objective.objects.count()) else f"chat-large · TTFT {there + 1}",
        "kind": "ttft",
        "target": 0.99,
        "threshold_seconds": 0.8,
        "model": "chat-large",
        "actor": SYSTEM,
    }
    return create_objective(**(told | values))  # type: ignore[arg-type]  # each test says what it changes


def tally(now: datetime = NOW) -> None:
    counted = -1
    while (done := tally_objectives(now=now)) != counted:  # new ones have their turn a few at a time
        counted = done

"""How objectives stand: what was counted for them, in as many queries for a hundred of them as for one.

Figures are as of the last whole minute, `as_of`: minutes that are not over would look like less traffic. A window of
days begins on the whole hour; one of hours or minutes begins on the minute.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import F, Q, QuerySet

from gateway.models import Objective, ObjectiveAlert, ObjectiveHour, ObjectiveMinute, Silence
from gateway.policies.slo import (
    DAY,
    HOUR,
    PAIRS,
    WINDOWS,
    Budget,
    Counted,
    Exhaustion,
    Pair,
    budget_of,
    burn_rate,
    exhaustion,
    is_burning,
)
from gateway.policies.slo_alerts import AlertState
from tenants.models import LatencyHour, ModelLatencyHour, Tenant

MINUTES_KEPT: Final = timedelta(hours=80)
"""Longer than the longest window of a burn rate, 3 days."""

SPARK_HOURS: Final = 24
MOST_MODELS: Final = 200
_SIX_HOURS: Final = 6 * HOUR
_THREE_DAYS: Final = 3 * DAY


@dataclass(frozen=True, slots=True)
class PairStanding:
    """One pair of windows now; `burning` is None where nothing is known."""

    pair: Pair
    long: float | None
    short: float | None
    burning: bool | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How one objective stands. `window` is the whole of it; `share`: of it that there was anything to count in."""

    as_of: datetime
    window: Counted
    share: float
    budget: Budget
    counts: Mapping[int, Counted]  # by window in seconds
    burns: Mapping[int, float | None]
    pairs: Sequence[PairStanding]
    exhausted: Exhaustion
    spark: Sequence[float | None] = field(default_factory=tuple)  # burn rate by the hour, oldest first

    @property
    def attained(self) -> float | None:
        return self.window.attained

    @property
    def burn(self) -> float | None:
        """Of the last hour, or of the last six where that had no requests."""
        return _pace(self.burns)


def as_of(now: datetime) -> datetime:
    """The end of the last whole minute."""
    return now.astimezone(UTC).replace(second=0, microsecond=0)


def whole_hour(moment: datetime) -> datetime:
    """The beginning of its hour (UTC)."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def list_objectives(tenant: Tenant | None = None) -> "QuerySet[Objective]":
    """All of the installation, or those of one tenant, newest first."""
    rows = Objective.objects.select_related("tenant").order_by("-pk")
    return rows if tenant is None else rows.filter(tenant=tenant)


def asked_models(tenant: Tenant | None, *, now: datetime) -> list[str]:
    """Models that were asked for in the last week, by name: of all tenants, or of one; MOST_MODELS at most."""
    rows = ModelLatencyHour.objects.all() if tenant is None else LatencyHour.objects.filter(tenant_id=tenant.pk)
    lately = rows.filter(hour__gte=now - timedelta(days=7)).exclude(model="")
    return list(lately.order_by("model").values_list("model", flat=True).distinct()[:MOST_MODELS])


def in_turn(new: "QuerySet[Objective]") -> "QuerySet[Objective]":
    """New ones in the order in which they are counted: those that took too long before after all others."""
    return new.order_by(F("count_failed_at").asc(nulls_first=True), "pk")


def new_before(objective: Objective) -> int | None:
    """How many new objectives are counted before this one; None where it is counted, took too long, or is disabled."""
    if objective.tallied_at is not None or objective.count_failed_at is not None or not objective.enabled:
        return None
    new = Objective.objects.filter(enabled=True, tallied_at=None, count_failed_at=None)
    return new.filter(pk__lt=objective.pk).count()


def list_alerts(tenant: Tenant | None = None, *, open_only: bool = False) -> "QuerySet[ObjectiveAlert]":
    """Newest first, with their objectives."""
    rows = ObjectiveAlert.objects.select_related("objective__tenant", "acknowledged_by").order_by("-pk")
    if tenant is not None:
        rows = rows.filter(objective__tenant=tenant)
    return rows.exclude(state=AlertState.RESOLVED.value) if open_only else rows


def list_silences(tenant: Tenant | None = None, *, now: datetime | None = None) -> "QuerySet[Silence]":
    """Newest first. With `now` those that hold then or later. A tenant sees its own."""
    rows = Silence.objects.select_related("objective", "tenant", "created_by").order_by("-pk")
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    return rows if now is None else rows.filter(ends_at__gt=now)


def holds(silence: Silence, objective: Objective) -> bool:
    """Whether this silence is over that objective: of whoever set it up, and of it or of all that are theirs."""
    return silence.tenant_id == _owner_id(objective) and silence.objective_id in (None, objective.pk)


def silences_over(objective: Objective, *, now: datetime) -> "QuerySet[Silence]":
    """Those over it that hold now or later, newest first: as `holds` says."""
    of_it = Q(objective=None) | Q(objective=objective)
    return list_silences(now=now).filter(of_it & Q(tenant_id=_owner_id(objective)))


def _owner_id(objective: Objective) -> UUID | None:
    """The tenant whose silences hold its alerts back; None for the platform's."""
    return objective.tenant_id if objective.tenants_own else None


def open_alerts(objectives: Sequence[Objective]) -> dict[UUID, list[ObjectiveAlert]]:
    """By objective, in the order of PAIRS: pages first."""
    order = {pair.name: place for place, pair in enumerate(PAIRS)}
    found: dict[UUID, list[ObjectiveAlert]] = {}
    alerts = ObjectiveAlert.objects.filter(objective__in=objectives).exclude(state=AlertState.RESOLVED.value)
    for alert in sorted(alerts.select_related("acknowledged_by"), key=lambda one: order.get(one.pair, 9)):
        found.setdefault(alert.objective_id, []).append(alert)
    return found


# Both sum inside of a LATERAL: so each objective's own rows are read by its index. Joined, everybody's would be read.
_HOURS: Final = """
SELECT o.id, s.*
  FROM unnest(%(ids)s::uuid[], %(sinces)s::timestamptz[]) AS o(id, since)
 CROSS JOIN LATERAL (
       SELECT min(h.hour) FILTER (WHERE h.hour >= o.since AND h.total > 0),
              coalesce(sum(h.total) FILTER (WHERE h.hour >= o.since), 0),
              coalesce(sum(h.good) FILTER (WHERE h.hour >= o.since), 0),
              coalesce(sum(h.total) FILTER (WHERE h.hour >= %(three_days)s), 0),
              coalesce(sum(h.good) FILTER (WHERE h.hour >= %(three_days)s), 0)
         FROM gateway_objectivehour h
        WHERE h.objective_id = o.id AND h.hour < %(this_hour)s AND h.hour >= least(o.since, %(three_days)s)
       ) AS s
"""
_MINUTES: Final = """
SELECT o.id, s.*
  FROM unnest(%s::uuid[]) AS o(id)
 CROSS JOIN LATERAL (
       SELECT min(minute) FILTER (WHERE minute >= %s AND total > 0), {columns}
         FROM (SELECT minute, total, good FROM gateway_objectiveminute
                WHERE objective_id = o.id AND minute >= %s AND minute < %s
                UNION ALL
               SELECT minute, total, good FROM gateway_objectiveminute
                WHERE objective_id = o.id AND minute >= %s AND minute < %s) AS m
       ) AS s
"""


def read_standings(objectives: Sequence[Objective], *, now: datetime, sparks: bool = True) -> dict[UUID, Standing]:
    """Of each objective. Three queries, however many there are; one less without `sparks`, whose rows are the most."""
    if not objectives:
        return {}
    end = as_of(now)
    this_hour, edge = whole_hour(end), end - timedelta(seconds=_THREE_DAYS)
    first_hour = edge if edge == whole_hour(edge) else whole_hour(edge) + timedelta(hours=1)
    ids = [one.pk for one in objectives]
    sinces = {one.pk: window_start(one, end) for one in objectives}
    days: dict[UUID, tuple[datetime | None, Counted, Counted]] = {}
    with connection.cursor() as cursor:
        told: dict[str, Any] = {
            "ids": ids,
            "sinces": list(sinces.values()),
            "three_days": first_hour,
            "this_hour": this_hour,
        }
        cursor.execute(_HOURS, told)
        for pk, began, total, good, late_total, late_good in cursor.fetchall():
            days[pk] = (began, Counted(int(total), int(good)), Counted(int(late_total), int(late_good)))
    short = _minutes(ids, end, this_hour=this_hour, edge=edge, first_hour=first_hour)
    drawn = _sparks(objectives, this_hour) if sparks else {}
    return {
        one.pk: _standing(
            one, end, sinces[one.pk], days.get(one.pk), short.get(one.pk), drawn.get(one.pk, [None] * SPARK_HOURS)
        )
        for one in objectives
    }


def standings_key(objectives: Sequence[Objective], *, now: datetime) -> Hashable:
    """While it stays the same, `read_standings` has nothing new to tell of them.

    Whatever is counted for an objective, or forgotten, is written together with its `tallied_at`; erasure alone deletes
    tallies first, and their objectives soon after. Of objectives that were read before the standings: so what is
    counted in between is read once more, and not missed. But see `counted_between`.
    """
    return as_of(now), tuple((one.pk, one.tallied_at, one.target, one.window_days) for one in objectives)


def counted_between(objectives: Sequence[Objective], standings: Mapping[UUID, Standing]) -> bool:
    """Whether one was counted first after it had been read, and before its standing was.

    Its key was that of nothing counted, and would be so again where it is changed before the next look.
    """
    new = [standings[one.pk] for one in objectives if one.tallied_at is None]
    return any(one.window.total or any(counted.total for counted in one.counts.values()) for one in new)


def window_start(objective: Objective, end: datetime) -> datetime:
    """Where the window that ends at `end` begins: on a whole hour."""
    return whole_hour(end - timedelta(days=objective.window_days))


_SHORT: Final = tuple(window for window in WINDOWS if window <= _SIX_HOURS)


def _minutes(
    ids: Sequence[UUID], end: datetime, *, this_hour: datetime, edge: datetime, first_hour: datetime
) -> dict[UUID, tuple[datetime | None, list[Counted]]]:
    """The first minute of this hour with requests; counts of the short windows, of this hour, of the 3-day edge."""
    starts = [(end - timedelta(seconds=window), end) for window in _SHORT] + [(this_hour, end), (edge, first_hour)]
    columns = ", ".join(
        f"coalesce(sum({column}) FILTER (WHERE minute >= %s AND minute < %s), 0)"
        for _ in starts
        for column in ("total", "good")
    )
    values = [moment for start in starts for _ in range(2) for moment in start]
    with connection.cursor() as cursor:
        cursor.execute(
            _MINUTES.format(columns=columns),
            [list(ids), this_hour, *values, end - timedelta(seconds=_SIX_HOURS), end, edge, first_hour],
        )
        return {
            row[0]: (row[1], [Counted(int(row[at]), int(row[at + 1])) for at in range(2, len(row), 2)])
            for row in cursor.fetchall()
        }


def _sparks(objectives: Sequence[Objective], this_hour: datetime) -> dict[UUID, list[float | None]]:
    targets = {one.pk: one.target for one in objectives}
    since = this_hour - timedelta(hours=SPARK_HOURS)
    found: dict[UUID, list[float | None]] = {}
    rows = ObjectiveHour.objects.filter(objective__in=list(targets), hour__gte=since, hour__lt=this_hour)
    for pk, hour, total, good in rows.values_list("objective_id", "hour", "total", "good"):
        values = found.setdefault(pk, [None] * SPARK_HOURS)
        values[int((hour - since).total_seconds() // HOUR)] = burn_rate(Counted(total, good), targets[pk])
    return found


def _standing(
    objective: Objective,
    end: datetime,
    since: datetime,
    days: tuple[datetime | None, Counted, Counted] | None,
    short: tuple[datetime | None, list[Counted]] | None,
    spark: list[float | None],
) -> Standing:
    began, whole, three_days = days or (None, Counted(), Counted())
    began_now, found = short or (None, [Counted()] * (len(_SHORT) + 2))
    running, edge = found[-2], found[-1]
    counts = dict(zip(_SHORT, found, strict=False)) | {_THREE_DAYS: edge + three_days + running}
    window = whole + running
    burns = {seconds: burn_rate(counted, objective.target) for seconds, counted in counts.items()}
    first = began or began_now
    share = 0.0 if first is None else (end - first).total_seconds() / (end - since).total_seconds()
    budget = budget_of(window, objective.target, share=share)
    pairs = [
        PairStanding(
            pair,
            burns[pair.long_seconds],
            burns[pair.short_seconds],
            is_burning(burns[pair.long_seconds], burns[pair.short_seconds], pair.burn),
        )
        for pair in PAIRS
    ]
    return Standing(
        end,
        window,
        min(1.0, share),
        budget,
        counts,
        burns,
        pairs,
        exhaustion(budget, _pace(burns), window_seconds=objective.window_days * DAY),
        spark,
    )


def _pace(burns: Mapping[int, float | None]) -> float | None:
    return burns[HOUR] if burns[HOUR] is not None else burns[_SIX_HOURS]


def hour_series(objective: Objective, *, now: datetime) -> tuple[datetime, list[Counted]]:
    """The whole window by the hour, the running one as far as whole minutes go; and its first hour. Two queries."""
    end = as_of(now)
    since, this_hour = window_start(objective, end), whole_hour(end)
    series = [Counted()] * (int((this_hour - since).total_seconds() // HOUR) + 1)
    rows = ObjectiveHour.objects.filter(objective=objective, hour__gte=since, hour__lt=this_hour)
    for hour, total, good in rows.values_list("hour", "total", "good"):
        series[int((hour - since).total_seconds() // HOUR)] = Counted(total, good)
    for _, counted in _minute_rows(objective, this_hour, end):
        series[-1] = series[-1] + counted
    return since, series


def hour_counts(objective: Objective, *, since: datetime, until: datetime) -> list[Counted]:
    """By the hour; both ends on whole hours."""
    series = [Counted()] * int((until - since).total_seconds() // HOUR)
    rows = ObjectiveHour.objects.filter(objective=objective, hour__gte=since, hour__lt=until)
    for hour, total, good in rows.values_list("hour", "total", "good"):
        series[int((hour - since).total_seconds() // HOUR)] = Counted(total, good)
    return series


def minute_series(objective: Objective, *, since: datetime, until: datetime) -> list[Counted]:
    """By the minute; both ends on whole minutes."""
    series = [Counted()] * int((until - since).total_seconds() // 60)
    for minute, counted in _minute_rows(objective, since, until):
        series[int((minute - since).total_seconds() // 60)] = counted
    return series


def bucket_series(
    objective: Objective, *, since: datetime, until: datetime, step: timedelta, by_hour: bool = False
) -> list[list[int] | None]:
    """Requests by bucket of latency, in steps from `since`; None for steps without any."""
    model, at = (ObjectiveHour, "hour") if by_hour else (ObjectiveMinute, "minute")
    rows = model._default_manager.filter(
        Q(**{f"{at}__gte": since, f"{at}__lt": until}), objective=objective
    ).values_list(at, "buckets")
    found: list[list[int] | None] = [None] * ceil((until - since) / step)
    for moment, counts in rows:
        place = int((moment - since).total_seconds() // step.total_seconds())
        before = found[place]
        found[place] = list(counts) if before is None else [a + b for a, b in zip(before, counts, strict=False)]
    return found


def _minute_rows(objective: Objective, since: datetime, until: datetime) -> list[tuple[datetime, Counted]]:
    rows = ObjectiveMinute.objects.filter(objective=objective, minute__gte=since, minute__lt=until)
    return [(minute, Counted(total, good)) for minute, total, good in rows.values_list("minute", "total", "good")]

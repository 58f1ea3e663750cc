"""Counting for objectives: from the rollups of latency and of refusals into tallies, so that pages only add up.

Every count is made anew from the rollups and put in the place of the one before: safe to run twice, also at once.
Availability counts requests that failed for our reasons, and those refused with 5xx before they were forwarded, as bad.
Refusals with 429 or any other 4xx count nowhere, and neither do requests that the client gave up.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from gateway.models import Objective, ObjectiveHour, ObjectiveMinute
from gateway.policies.slo import BOUNDS, WINDOWS, Kind, place_of
from gateway.reads.slo import MINUTES_KEPT, whole_hour

LATE: Final = timedelta(minutes=30)
"""Requests come into the rollups when they have ended, and by the minute in which they began."""

LATE_SPOOLS: Final = timedelta(hours=26)
"""What a process that died left in its spool may come much later: this far back is counted again once an hour."""

PIECE: Final = timedelta(hours=8)
"""So many minutes are counted by one statement."""

NEW_AT_ONCE: Final = 4
"""Objectives that are counted over their whole window in one look; the others have their turn in the next."""

_SQL: Final = """
WITH o AS (
  SELECT * FROM unnest(%(ids)s::uuid[], %(kinds)s::text[], %(places)s::int[], %(lengths)s::int[], %(models)s::text[],
                       %(tenants)s::uuid[], %(tiers)s::text[], %(versions)s::uuid[])
    AS o(id, kind, place, length, model, tenant_id, tier, version_id)
),
scoped AS ( -- by the tenants that count: of each only its own rows are read
  SELECT o.*, o.tenant_id AS whose FROM o WHERE o.tenant_id IS NOT NULL
  UNION ALL
  SELECT o.*, t.id FROM o JOIN tenants_tenant t ON t.sla_tier = o.tier WHERE o.tenant_id IS NULL AND o.tier <> ''
),
found AS (
  SELECT o.id, o.kind, l.{unit} AS at, l.requests - l.cancelled AS requests, l.faults,
         CASE o.kind WHEN 'tpot' THEN l.tpot WHEN 'queue_wait' THEN l.queue ELSE l.ttft END AS counts
    FROM o JOIN tenants_modellatency{unit} l ON l.{unit} >= %(since)s AND l.{unit} < %(until)s
     AND (o.model = '' OR l.model = o.model) AND (o.version_id IS NULL OR l.version_id = o.version_id)
   WHERE o.tenant_id IS NULL AND o.tier = ''
  UNION ALL
  SELECT o.id, o.kind, l.{unit}, l.requests - l.cancelled, l.faults,
         CASE o.kind WHEN 'tpot' THEN l.tpot WHEN 'queue_wait' THEN l.queue ELSE l.ttft END
    FROM scoped o JOIN tenants_latency{unit} l ON l.tenant_id = o.whose
     AND l.{unit} >= %(since)s AND l.{unit} < %(until)s
     AND (o.model = '' OR l.model = o.model) AND (o.version_id IS NULL OR l.version_id = o.version_id)
),
summed AS (
  SELECT id, kind, at, sum(requests)::bigint AS requests, sum(faults)::bigint AS faults, {summed} AS counts
    FROM found GROUP BY 1, 2, 3
),
latency AS (
  SELECT s.id, s.at, (SELECT coalesce(sum(n), 0)::bigint FROM unnest(s.counts) AS n) AS total,
         (SELECT coalesce(sum(n), 0)::bigint FROM unnest(s.counts[1:o.place]) AS n) AS good
    FROM summed s JOIN o ON o.id = s.id WHERE s.kind <> 'availability'
),
served AS (SELECT id, at, requests AS total, faults AS bad FROM summed WHERE kind = 'availability'),
refused AS (
  SELECT o.id, date_trunc('{unit}', r.minute, 'UTC') AS at, sum(r.refusals)::bigint AS n
    FROM o JOIN tenants_refusalminute r ON r.minute >= %(since)s AND r.minute < %(until)s AND r.status >= 500
     AND (o.model = '' OR r.model = o.model)
   WHERE o.kind = 'availability' AND o.version_id IS NULL AND o.tenant_id IS NULL AND o.tier = ''
   GROUP BY 1, 2
  UNION ALL
  SELECT o.id, date_trunc('{unit}', r.minute, 'UTC'), sum(r.refusals)::bigint
    FROM scoped o JOIN tenants_refusalminute r ON r.tenant_id = o.whose
     AND r.minute >= %(since)s AND r.minute < %(until)s AND r.status >= 500 AND (o.model = '' OR r.model = o.model)
   WHERE o.kind = 'availability' AND o.version_id IS NULL
   GROUP BY 1, 2
),
counted AS (
  SELECT id, at, total, good FROM latency
  UNION ALL
  SELECT coalesce(s.id, r.id), coalesce(s.at, r.at), coalesce(s.total, 0) + coalesce(r.n, 0),
         coalesce(s.total, 0) - coalesce(s.bad, 0)
    FROM served s FULL JOIN refused r ON r.id = s.id AND r.at = s.at
)
INSERT INTO gateway_objective{unit} AS kept (objective_id, {unit}, total, good, buckets)
SELECT c.id, c.at, c.total, greatest(c.good, 0), coalesce(s.counts[1:o.length], array_fill(0::bigint, ARRAY[o.length]))
  FROM counted c JOIN o ON o.id = c.id LEFT JOIN summed s ON s.id = c.id AND s.at = c.at
 ORDER BY c.id, c.at
    ON CONFLICT (objective_id, {unit}) DO UPDATE
   SET total = excluded.total, good = excluded.good, buckets = excluded.buckets
 WHERE (kept.total, kept.good, kept.buckets) IS DISTINCT FROM (excluded.total, excluded.good, excluded.buckets)
RETURNING {unit}
"""
_MOST_BUCKETS: Final = max(len(bounds) for bounds in BOUNDS.values()) + 1
_SUMMED: Final = f"ARRAY[{', '.join(f'coalesce(sum(counts[{n}]), 0)::bigint' for n in range(1, _MOST_BUCKETS + 1))}]"
"""One sum a bucket: to unnest the arrays and put them together again takes many times as long."""


def tally_objectives(*, now: datetime, among: Sequence[UUID] | None = None) -> int:
    """Bring the tallies of objectives that are enabled up to `now`; returns how many objectives that were.

    `among`: of these alone, not of all. One that is new is counted over its whole window first, NEW_AT_ONCE of those in
    one call. A pause of any length is made good. Whoever changes an objective waits meanwhile: else what was counted by
    the old threshold would stand for the new one.
    """
    with transaction.atomic():
        return _tally(now, among)


def _tally(now: datetime, among: Sequence[UUID] | None) -> int:
    rows = Objective.objects.select_for_update(of=("self",), no_key=True).filter(enabled=True).order_by("pk")
    enabled = list(rows if among is None else rows.filter(pk__in=among))
    new = [objective for objective in enabled if objective.tallied_at is None][:NEW_AT_ONCE]
    for objective in new:
        _count([objective], "hour", since=whole_hour(now) - _looked_back(objective.window_days), until=now)
        for since, until in _pieces(now - MINUTES_KEPT, now):
            _count([objective], "minute", since=since, until=until)
    known = [objective for objective in enabled if objective.tallied_at is not None]
    if known:
        last = min(objective.tallied_at for objective in known if objective.tallied_at is not None)
        new_hour = whole_hour(last) < whole_hour(now)
        longest = whole_hour(now) - max(_looked_back(objective.window_days) for objective in known)
        since = max(whole_hour(min(last, now) - LATE), longest)
        if new_hour:
            # Minutes are many: only those are counted again in whose hours something has come.
            late = max(whole_hour(min(last, now) - LATE_SPOOLS), longest)
            since = min([since, *_count(known, "hour", since=late, until=since)])
            prune_tallies(now=now, among=[objective.pk for objective in known])
        _count(known, "hour", since=since, until=now)
        for begun, until in _pieces(max(since, now - MINUTES_KEPT), now):
            _count(known, "minute", since=begun, until=until)
    counted = [*new, *known]
    Objective.objects.filter(pk__in=[one.pk for one in counted]).update(tallied_at=now)
    return len(counted)


def prune_tallies(*, now: datetime, among: Sequence[UUID]) -> None:
    """Delete what is older than any window of those objectives looks back. Safe to run twice."""
    ObjectiveMinute.objects.filter(objective__in=among, minute__lt=now - MINUTES_KEPT).delete()
    windows: dict[int, list[UUID]] = {}
    for pk, days in Objective.objects.filter(pk__in=among).values_list("pk", "window_days"):
        windows.setdefault(days, []).append(pk)
    for days, ids in windows.items():
        old = now - _looked_back(days) - timedelta(hours=2)
        ObjectiveHour.objects.filter(objective__in=ids, hour__lt=old).delete()


def forget_tallies(objective: Objective) -> None:
    """What it counts is another thing now: its window is counted anew at the next look. In the caller's transaction."""
    objective.minutes.all().delete()
    objective.hours.all().delete()
    objective.tallied_at = objective.count_failed_at = objective.budget_remaining = None


def _pieces(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """A span cut on whole hours, so that no statement over many models' minutes takes as long as one may."""
    while since < until:
        end = min(until, whole_hour(since) + PIECE)
        yield since, end
        since = end


def _looked_back(window_days: int) -> timedelta:
    """How far back hours are needed: the longest burn rate looks at more than the shortest windows hold."""
    return max(timedelta(days=window_days), timedelta(seconds=WINDOWS[-1]))


def _count(objectives: Sequence[Objective], unit: str, *, since: datetime, until: datetime) -> list[datetime]:
    """`unit`: minute or hour; returns in which something has changed.

    Minutes and hours that have begun before `until` are counted as far as they have come.
    """
    first = since.astimezone(UTC).replace(second=0, microsecond=0)
    told: dict[str, Any] = {
        "ids": [one.pk for one in objectives],
        "kinds": [one.kind for one in objectives],
        "places": [_place(one) for one in objectives],
        "lengths": [len(BOUNDS[Kind(one.kind)]) + 1 for one in objectives],
        "models": [one.model for one in objectives],
        "tenants": [one.tenant_id for one in objectives],
        "tiers": [one.tier for one in objectives],
        "versions": [one.version_id for one in objectives],
        "since": whole_hour(first) if unit == "hour" else first,
        "until": until,
    }
    with connection.cursor() as cursor:
        cursor.execute(_SQL.format(unit=unit, summed=_SUMMED), told)
        return [row[0] for row in cursor.fetchall()]


def _place(objective: Objective) -> int:
    if objective.threshold_seconds is None:
        return 0
    return place_of(Kind(objective.kind), objective.threshold_seconds)

"""What counters are rebuilt from: the ledger, and the spools of processes that cannot speak for themselves."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from gateway.relay.limiting import layout
from gateway.relay.limiting.layout import Counter, counter_of
from gateway.relay.recovery import DeadSpool
from gateway.relay.rows import LimitRow
from gateway.services.limit_counters import Written
from gateway.services.limit_sums import Span, first_id, sum_by_limit, sum_by_second, sum_rows
from gateway.services.snapshot_source import limit_rows
from tenants.models import ApiKey, LedgerMark, Metric, UsageRecord, Window
from tenants.usage import UsageRow

_LONGEST_REFILL_SECONDS: Final = 86_400.0
"""A bucket that takes longer to fill is empty after a rebuild: never too much."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A limit with the counter of now, and since when the ledger's rows are in it."""

    limit: LimitRow
    counter: Counter
    since: float

    @property
    def span(self) -> Span:
        return Span(self.limit, self.since)


@dataclass(frozen=True, slots=True)
class Base:
    """Counters as the ledger has them, up to `marks`."""

    counters: Sequence[Written]
    marks: Mapping[UUID, int]
    absent: Mapping[UUID, Mapping[str, int]]  # process -> calendar counter -> units that it may still use


@contextlib.contextmanager
def one_moment() -> Iterator[None]:
    """All reads see one state of the database."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def calendar_limits(now: float, only: Sequence[UUID] | None = None) -> list[Counted]:
    """Limits of a calendar period (of `only` these), with the period that `now` (seconds since the epoch) lies in."""
    found = []
    for limit in limit_rows(only):
        if limit.window in (Window.DAY, Window.MONTH):
            counter = counter_of(limit, now)
            found.append(Counted(limit, counter, max(float(counter.start), limit.counts_from)))
    return found


def read_marks() -> dict[UUID, int]:
    return dict(LedgerMark.objects.values_list("process_id", "sequence"))


def read_base(now: int, *, present: Collection[UUID], absent: Collection[UUID], spools: Path) -> Base:
    """What counters are to have at `now` (Valkey's seconds). Within `one_moment`.

    `present` processes say themselves what is beyond their marks. `absent` are those of this machine that live and
    cannot be heard: they are held to use all that is in their `spools`.
    """
    marks = read_marks()
    through = {process: marks.get(process, 0) for process in [*present, *absent]}
    # Read after the marks: what has no row now has none up to the mark either.
    beyond = {
        process: [row for row in read_spool(spools / str(process)) if row.sequence > through[process]]
        for process in absent
    }
    calendar = calendar_limits(now)
    written = _calendar(calendar, through)
    written += _minutes(now, through, [row for rows in beyond.values() for row in rows])
    written += _buckets(now, through)
    holdings = {}
    for process, rows in beyond.items():
        units = sum_rows([counted.span for counted in calendar], rows)
        holdings[process] = {c.counter.name: n for c, n in zip(calendar, units, strict=True) if n}
    return Base(written, marks, holdings)


def _calendar(limits: Sequence[Counted], through: Mapping[UUID, int]) -> list[Written]:
    totals = sum_by_limit([counted.span for counted in limits], through=through)
    return [
        Written(
            counted.counter.name,
            counted.counter.end + layout.KEPT_AFTER_END_SECONDS,
            {"used": total, "end": counted.counter.end},
        )
        for counted, total in zip(limits, totals, strict=True)
        if total
    ]


def _minutes(now: int, through: Mapping[UUID, int], beyond: Sequence[UsageRow]) -> list[Written]:
    since = now - layout.WINDOW_SECONDS - 1.0
    limits = [limit for limit in limit_rows(None) if limit.window == Window.MINUTE] + _key_limits(since)
    seconds = sum_by_second(limits, since, through=through)
    for row in beyond:
        spans = [Span(limit, since) for limit in limits]
        for counts, units in zip(seconds, sum_rows(spans, [row]), strict=True):
            if units:
                counts[int(row.started_at)] = counts.get(int(row.started_at), 0) + units
    written = []
    for limit, counts in zip(limits, seconds, strict=True):
        if counts:
            # Rounded up: it may have been admitted at the second's end. By no clock of another machine's in the future.
            fields: dict[str, int | float] = {}
            for second, units in counts.items():
                name = str(min(second + 1, now))
                fields[name] = fields.get(name, 0) + units
            moments = [int(name) for name in fields]
            fields |= {"used": sum(counts.values()), "head": min(moments), "last": max(moments)}
            written.append(Written(counter_of(limit, now).name, now + 2 * layout.WINDOW_SECONDS + 1, fields))
    return written


def _key_limits(since: float) -> list[LimitRow]:
    """The limits that keys carry themselves, as far as they were used since then."""
    limited = ApiKey.objects.filter(rpm_limit__isnull=False)
    used = UsageRecord.objects.filter(
        id__gte=first_id(since), started_at__gte=datetime.fromtimestamp(since, UTC), key_id__isnull=False
    )
    return [
        LimitRow(
            id=key.limits_id,
            tenant_id=key.tenant_id,
            subtree=False,
            key_id=key.limits_id,
            model="",
            metric=Metric.REQUESTS,
            window=Window.MINUTE,
            amount=key.rpm_limit or 0,
            refill_per_second=None,
            boost_amount=None,
            boost_until=None,
            counts_from=0.0,
            time_zone="UTC",
        )
        for key in {key.limits_id: key for key in limited.filter(pk__in=used.values("key_id"))}.values()
    ]


def _buckets(now: int, through: Mapping[UUID, int]) -> list[Written]:
    """At least so full: what was taken in the time that fills a bucket from nothing is all that can be missing."""
    limits = [limit for limit in limit_rows(None) if limit.window == Window.BUCKET and limit.refill_per_second]
    fills = [limit.amount_at(now) / (limit.refill_per_second or 1.0) for limit in limits]
    spans = [Span(limit, now - fill - 1) for limit, fill in zip(limits, fills, strict=True)]
    short = [span for span, fill in zip(spans, fills, strict=True) if fill <= _LONGEST_REFILL_SECONDS]
    taken = dict(zip([span.limit.id for span in short], sum_by_limit(short, through=through), strict=True))
    written = []
    for limit, fill in zip(limits, fills, strict=True):
        amount = limit.amount_at(now)
        level = max(0, amount - taken.get(limit.id, amount))
        if level < amount:
            fields: dict[str, int | float] = {"level": level, "at": now * 1_000_000}
            written.append(Written(counter_of(limit, now).name, now + int(fill) + 60, fields))
    return written


def list_spools(folder: Path) -> set[UUID]:
    """The processes that have a spool on this machine."""
    found = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(ValueError):
            found.add(UUID(path.name))
    return found


def read_spool(folder: Path) -> list[UsageRow]:
    """Rows of a spool whose owner may go on writing, requests under way as `lost` ones; none where it is gone."""
    try:
        return list(DeadSpool(folder, -1).rows())
    except OSError:
        return []

"""What the ledger says has been used under limits: one read for all limits together, whatever their windows.

The ledger is summed by tenant, key, model and part of time, the parts being cut where any limit begins to count; the
sums are then added up under every limit that takes them in, as `Snapshot.limits` would find them. Rows are found by
their ids, which carry the time, so that partitions and indexes of tenants bound what is read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final
from uuid import UUID

from django.db import connection

from core.ids import uuid7_from
from gateway.relay.rows import LimitRow
from tenants.models import Metric, Tenant
from tenants.reads.keys import keys_of_lineages
from tenants.usage import UsageRow

_CLOCK_SLACK_SECONDS: Final = 3_600.0
"""A process's ids never go back in time with its clock: a row's id may be that much later or earlier than its start."""

_MOST_SECONDS: Final = 600
"""Told apart by `sum_by_second`; later ones, which only a clock that is ahead can have, count in the last."""

_MOST_TENANTS: Final = 200
"""Of more than so many tenants, all rows of the time are read: fewer lookups than one for each tenant."""

_REPORTED: Final = """
        LEFT JOIN unnest(%(processes)s::uuid[], %(through)s::bigint[]) AS reported(process_id, through)
            ON reported.process_id = spent.process_id
"""


@dataclass(frozen=True, slots=True)
class Used:
    """A sum of ledger rows, as limits count them: a `lost` row is held to have used what was reserved for it."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0

    def of(self, metric: str) -> int:
        """How much of a limit's metric that is; nothing of those that do not add up over time."""
        if metric == Metric.REQUESTS:
            return self.requests
        if metric == Metric.TOKENS:
            return self.input_tokens + self.output_tokens
        if metric == Metric.INPUT_TOKENS:
            return self.input_tokens
        if metric == Metric.OUTPUT_TOKENS:
            return self.output_tokens
        return self.micros if metric == Metric.MONEY else 0


@dataclass(frozen=True, slots=True)
class Span:
    """A limit and since when its use is asked for, in seconds since the epoch."""

    limit: LimitRow
    since: float


@dataclass(frozen=True, slots=True)
class Sum:
    """Use of one tenant, key and model from `since` (seconds since the epoch) to the next cut."""

    tenant_id: UUID
    key_id: UUID | None  # None also where no limit of the key was asked about
    model: str
    since: float
    used: Used


@dataclass(frozen=True, slots=True)
class Also:
    """Rows of a process that count although they come after what it has reported."""

    process_id: UUID
    first: int
    last: int


def sum_by_limit(spans: Sequence[Span], *, through: Mapping[UUID, int], also: Sequence[Also] = ()) -> list[int]:
    """Of each span: units of the limit's metric in ledger rows that started since then.

    `through`: of these processes only rows up to that sequence, and those of `also`; of all others every row. One query
    of the ledger.
    """
    if not spans:
        return []
    family = _Family([span.limit for span in spans])
    sums = _read([span.since for span in spans], family, through, also)
    corrected = [span.since for span in spans if span.limit.metric == Metric.MONEY]
    if corrected:
        sums = chain(sums, _read_corrections(min(corrected), through, also))
    return _add_up(spans, family, sums)


def sum_rows(spans: Sequence[Span], rows: Iterable[UsageRow]) -> list[int]:
    """Of each span: the same for rows that are not in the ledger yet."""
    family = _Family([span.limit for span in spans])
    return _add_up(spans, family, map(_sum_of, rows))


def _sum_of(row: UsageRow) -> Sum:
    used = Used(
        requests=1,
        input_tokens=(row.input_tokens or 0) + (row.reserved_input or 0),
        output_tokens=(row.output_tokens or 0) + (row.reserved_output or 0),
        micros=row.cost_micros + (row.reserved_micros or 0),
    )
    return Sum(row.tenant_id, row.key_id, row.model, row.started_at, used)


def _add_up(spans: Sequence[Span], family: "_Family", sums: Iterable[Sum]) -> list[int]:
    totals = [0] * len(spans)
    takers = _Takers(spans, family)
    for part in sums:
        for index in takers.find(part):
            totals[index] += part.used.of(spans[index].limit.metric)
    return totals


def sum_by_second(limits: Sequence[LimitRow], since: float, *, through: Mapping[UUID, int]) -> list[dict[int, int]]:
    """Of each limit: second -> units in rows that started in that second, none before `since`."""
    if not limits:
        return []
    family = _Family(limits)
    first = int(since)
    cuts = [float(second) for second in range(first, first + _MOST_SECONDS)]  # one part a second
    takers = _Takers([Span(limit, since) for limit in limits], family)
    found: list[dict[int, int]] = [{} for _ in limits]
    for part in _read(cuts, family, through, ()):
        for index in takers.find(part):
            units = part.used.of(limits[index].metric)
            if units:
                second = int(part.since)
                found[index][second] = found[index].get(second, 0) + units
    return found


class _Family:
    """Which tenants' use counts under which, as far as the limits ask."""

    def __init__(self, limits: Iterable[LimitRow]) -> None:
        limits = [*limits]
        keys = {limit.key_id for limit in limits if limit.key_id is not None}
        self._lineages = keys_of_lineages(keys) if keys else {}
        self.keys = sorted(keys | self._lineages.keys())
        self.models = sorted({limit.model for limit in limits if limit.model})
        named = {limit.tenant_id for limit in limits if limit.tenant_id is not None}
        self._parents: dict[UUID, UUID] = {}
        if any(limit.subtree for limit in limits):
            self._parents = dict(Tenant.objects.filter(parent__isnull=False).values_list("pk", "parent_id"))
            named |= {tenant for tenant in self._parents if named.intersection(self.ancestors(tenant))}
        bounded = all(limit.tenant_id is not None for limit in limits) and len(named) <= _MOST_TENANTS
        self.tenants = sorted(named) if bounded else None

    def lineage(self, key_id: UUID) -> UUID:
        """The key under whose id the limits are that it shares with those it was rotated out of."""
        return self._lineages.get(key_id, key_id)

    def ancestors(self, tenant_id: UUID) -> Iterator[UUID]:
        """Parents and their parents; a circle ends."""
        seen = {tenant_id}
        parent = self._parents.get(tenant_id)
        while parent is not None and parent not in seen:
            yield parent
            seen.add(parent)
            parent = self._parents.get(parent)


class _Takers:
    """Finds the spans that take a sum in."""

    def __init__(self, spans: Sequence[Span], family: _Family) -> None:
        self._spans = spans
        self._family = family
        self._about: dict[UUID | None, list[int]] = {}
        for index, span in enumerate(spans):
            self._about.setdefault(span.limit.key_id or span.limit.tenant_id, []).append(index)

    def find(self, part: Sum) -> Iterator[int]:
        yield from self._of(None, part)
        if part.key_id is not None:
            yield from self._of(self._family.lineage(part.key_id), part)
        yield from self._of(part.tenant_id, part)
        for ancestor in self._family.ancestors(part.tenant_id):
            yield from (index for index in self._of(ancestor, part) if self._spans[index].limit.subtree)

    def _of(self, about: UUID | None, part: Sum) -> Iterator[int]:
        for index in self._about.get(about, ()):
            span = self._spans[index]
            if span.since <= part.since and span.limit.model in ("", part.model):
                yield index


def _read(cuts: Iterable[float], family: _Family, through: Mapping[UUID, int], also: Sequence[Also]) -> Iterator[Sum]:
    """Rows since the first cut, summed between cuts."""
    starts = sorted(set(cuts))
    of_tenants = "" if family.tenants is None else "AND spent.tenant_id = ANY(%(tenants)s::uuid[])"
    query = f"""
        SELECT spent.tenant_id,
               CASE WHEN spent.key_id = ANY(%(keys)s::uuid[]) THEN spent.key_id END,
               CASE WHEN spent.model = ANY(%(models)s::text[]) THEN spent.model ELSE '' END,
               width_bucket(spent.started_at, %(starts)s::timestamptz[]),
               count(*),
               coalesce(sum(coalesce(spent.input_tokens, 0) + coalesce(spent.reserved_input, 0)), 0)::bigint,
               coalesce(sum(coalesce(spent.output_tokens, 0) + coalesce(spent.reserved_output, 0)), 0)::bigint,
               coalesce(sum(spent.cost_micros + coalesce(spent.reserved_micros, 0)), 0)::bigint
        FROM tenants_usagerecord AS spent
        {_REPORTED}
        WHERE spent.id >= %(first_id)s AND spent.started_at >= %(first)s AND {_counts(also)} {of_tenants}
        GROUP BY 1, 2, 3, 4
    """  # noqa: S608  # the varying parts are ours
    values: dict[str, Any] = {
        "keys": family.keys,
        "models": family.models,
        "tenants": family.tenants,
        "starts": [datetime.fromtimestamp(start, UTC) for start in starts],
        **_reported(starts[0], through, also),
    }
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        for tenant_id, key_id, model, part, requests, input_tokens, output_tokens, micros in cursor.fetchall():
            used = Used(requests, input_tokens, output_tokens, micros)
            yield Sum(tenant_id, key_id, model, starts[part - 1], used)


def _counts(also: Sequence[Also]) -> str:
    too = """OR EXISTS (
        SELECT FROM unnest(%(too)s::uuid[], %(firsts)s::bigint[], %(lasts)s::bigint[]) AS too(process_id, first, last)
        WHERE too.process_id = spent.process_id AND spent.sequence BETWEEN too.first AND too.last
    )"""
    return f"(reported.process_id IS NULL OR spent.sequence <= reported.through {too if also else ''})"


def _reported(first: float, through: Mapping[UUID, int], also: Sequence[Also]) -> dict[str, Any]:
    return {
        "first": datetime.fromtimestamp(first, UTC),
        "first_id": first_id(first),
        "processes": [*through],
        "through": [*through.values()],
        "too": [span.process_id for span in also],
        "firsts": [span.first for span in also],
        "lasts": [span.last for span in also],
    }


def _read_corrections(first: float, through: Mapping[UUID, int], also: Sequence[Also]) -> Iterator[Sum]:
    """What people have written against single rows, as if the rows had cost that."""
    query = f"""
        SELECT spent.tenant_id, spent.key_id, spent.model, spent.started_at, adjustment.amount_micros
        FROM tenants_adjustment AS adjustment
        JOIN tenants_usagerecord AS spent ON spent.id = adjustment.usage_record_id
        {_REPORTED}
        WHERE adjustment.kind = 'correction' AND adjustment.usage_record_id >= %(first_id)s
            AND spent.started_at >= %(first)s AND {_counts(also)}
    """  # noqa: S608  # the varying parts are ours
    with connection.cursor() as cursor:
        cursor.execute(query, _reported(first, through, also))
        for tenant_id, key_id, model, started_at, micros in cursor.fetchall():
            yield Sum(tenant_id, key_id, model, started_at.timestamp(), Used(micros=micros))


def first_id(since: float) -> UUID:
    """No row that started since then (seconds since the epoch) has a smaller id."""
    return uuid7_from(max(0, int((since - _CLOCK_SLACK_SECONDS) * 1000)))

"""What the usage page shows, from rollups alone: sums by group and bucket, keys that used most, what was refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db.models import Sum

from dashboard.charts.usage import MAX_SERIES, Series
from dashboard.keeping import kept
from tenants.models import ApiKey, RefusalMinute, Tenant, User
from tenants.reads.usage import Only, UsageSums, sum_usage, sums_of

Read = TypeVar("Read")

MEASURES: Final[Mapping[str, tuple[str, ...]]] = {
    "tokens": ("input_tokens", "output_tokens"),
    "requests": ("requests",),
    "cost": ("cost_micros",),
}
_MOST_FIRST: Final[Mapping[str, str]] = {
    measure: f"ORDER BY {' + '.join(f'sum({name})' for name in names)} DESC, key_id"
    for measure, names in MEASURES.items()
}
GROUPS: Final[Mapping[str, str]] = {"model": "model", "key": "key_id", "member": "member_id"}
KEY_LIMIT: Final = 50
MANY_KEYS: Final = 2_000
KEPT_SECONDS: Final = 300
"""Of a tenant with that many keys, how old it may be which keys used most, and what members did."""

_SUMS: Final = (
    "requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "ttft_ms", "ttft_count", "cost_micros",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAsk:
    """What the address asks for; `starts` are the chart's buckets, the last of which ends at `until`.

    `many_keys`: sums over all keys take so long that they are kept for a while, see KEPT_SECONDS. `running`: `until`
    is now, so that asked again it is later.
    """

    tenant: Tenant
    starts: Sequence[datetime]
    until: datetime
    group: str = "model"
    measure: str = "tokens"
    only: Only
    many_keys: bool = False
    running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """One key's use; `by_bucket` of the measure. `limited`: requests that a limit refused."""

    key: ApiKey | None  # None: requests that no key made, or of one that was deleted
    key_id: UUID | None
    requests: int
    failures: int
    tokens: int
    cost_micros: int
    limited: int
    by_bucket: Sequence[int]

    @property
    def limited_share(self) -> float | None:
        """Of all that it asked; refused requests are none of those that were forwarded."""
        asked = self.requests + self.limited
        return self.limited / asked if asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    totals: UsageSums
    before: UsageSums  # of as long a time before
    limited: int
    series: Sequence[Series]
    keys: Sequence[KeyLine]
    more_keys: bool
    models: Sequence[str]  # that were used, whatever is filtered by model

    @property
    def limited_share(self) -> float | None:
        asked = self.totals.requests + self.limited
        return self.limited / asked if asked else None


def read_usage(ask: UsageAsk, *, other: str, keyless: str, nobody: str, with_keys: bool = True) -> UsagePage:
    """A constant number of queries. `other`, `keyless` and `nobody` are words for series without a name.

    Without `with_keys` no key is told of, unless the chart is of keys.
    """
    tenant_id, buckets = ask.tenant.pk, len(ask.starts)
    first = ask.starts[0].astimezone(UTC)  # moments of one zone are told apart by their clocks, which change in summer
    earliest = first - (ask.until - first)
    rows = sum_usage([tenant_id], starts=ask.starts, until=ask.until, by=["bucket", "model"], sums=_SUMS, only=ask.only)
    earlier = sum_usage([tenant_id], starts=[earliest], until=first, by=[], sums=_SUMS, only=ask.only)
    limited = _limited(ask)
    keys, more = _keys(ask, limited) if with_keys or ask.group == "key" else ([], False)
    if ask.group == "model":
        series = _series(rows, "model", ask.measure, buckets, {}, other)
    elif ask.group == "member":
        found = _when_dear(ask, "usage-members", lambda: _by_member(ask))
        people = User.objects.in_bulk({row["member_id"] for row in found} - {None})
        names = {pk: str(person) for pk, person in people.items()} | {None: nobody}
        series = _series(found, "member_id", ask.measure, buckets, names, other)
    else:
        series = _key_series(rows, keys, ask.measure, buckets, other, keyless)
    used = rows
    if ask.only.model:
        wider = Only(key_id=ask.only.key_id, key_name=ask.only.key_name)
        used = sum_usage(
            [tenant_id], starts=ask.starts[:1], until=ask.until, by=["model"], sums=["requests"], only=wider
        )
    return UsagePage(
        totals=_added(rows),
        before=_added(earlier),
        limited=sum(limited.values()),
        series=series,
        keys=keys,
        more_keys=more,
        models=sorted({row["model"] for row in used} | ({ask.only.model} if ask.only.model else set())),
    )


def has_many_keys(tenant: Tenant) -> bool:
    """Whether sums over all keys take so long that a page should not wait for them."""
    return ApiKey.objects.filter(tenant=tenant).order_by()[: MANY_KEYS + 1].count() > MANY_KEYS


def read_key_lines(ask: UsageAsk) -> tuple[list[KeyLine], bool]:
    """The keys that used most, and whether there are more."""
    return _keys(ask, _limited(ask))


def usage_rows(ask: UsageAsk, *, limit: int) -> list[dict[str, Any]]:
    """Sums by bucket and group, at most `limit`: the CSV's rows."""
    column = GROUPS[ask.group]
    return sum_usage(
        [ask.tenant.pk],
        starts=ask.starts,
        until=ask.until,
        by=["bucket", column],
        sums=_SUMS,
        only=ask.only,
        tail=f"ORDER BY bucket, {column} LIMIT {int(limit)}",
    )


def usage_rows_by_bucket(ask: UsageAsk) -> Iterator[list[dict[str, Any]]]:
    """All of the same, a bucket at a time: of thousands of keys one bucket has thousands of rows."""
    column = GROUPS[ask.group]
    for bucket, (since, until) in enumerate(pairwise([*ask.starts, ask.until])):
        rows = sum_usage(
            [ask.tenant.pk],
            starts=[since],
            until=until,
            by=[column],
            sums=_SUMS,
            only=ask.only,
            tail=f"ORDER BY {column}",
        )
        yield [row | {"bucket": bucket} for row in rows]


def measured(row: Mapping[str, Any], measure: str) -> int:
    """The measure of a row of sums."""
    return sum(int(row[name]) for name in MEASURES[measure])


def _keys(ask: UsageAsk, limited: Mapping[UUID | None, int]) -> tuple[list[KeyLine], bool]:
    """The keys that used most of the measure, and whether there are more."""
    ranked = _when_dear(ask, "usage-keys", lambda: _most_used(ask))
    more, ids = len(ranked) > KEY_LIMIT, ranked[:KEY_LIMIT]
    shown = sum_usage(
        [ask.tenant.pk],
        starts=ask.starts[:1],
        until=ask.until,
        by=["key_id"],
        sums=["requests", "failures", "input_tokens", "output_tokens", "cost_micros"],
        key_ids=ids,
        only=ask.only,
        tail=_MOST_FIRST[ask.measure],
    )
    found = ApiKey.objects.in_bulk([key_id for key_id in ids if key_id is not None])
    by_bucket: dict[UUID | None, list[int]] = {key_id: [0] * len(ask.starts) for key_id in ids}
    for row in sum_usage(
        [ask.tenant.pk],
        starts=ask.starts,
        until=ask.until,
        by=["bucket", "key_id"],
        sums=MEASURES[ask.measure],
        key_ids=ids,
        only=ask.only,
    ):
        by_bucket[row["key_id"]][row["bucket"]] = measured(row, ask.measure)
    lines = [
        KeyLine(
            key=found.get(row["key_id"]) if row["key_id"] else None,
            key_id=row["key_id"],
            requests=row["requests"],
            failures=row["failures"],
            tokens=row["input_tokens"] + row["output_tokens"],
            cost_micros=row["cost_micros"],
            limited=limited.get(row["key_id"], 0),
            by_bucket=by_bucket[row["key_id"]],
        )
        for row in shown
    ]
    return lines, more


def _most_used(ask: UsageAsk) -> list[UUID | None]:
    """The keys that used most of the measure, most first; one more than are shown."""
    rows = sum_usage(
        [ask.tenant.pk],
        starts=ask.starts[:1],
        until=ask.until,
        by=["key_id"],
        sums=MEASURES[ask.measure],
        only=ask.only,
        tail=f"{_MOST_FIRST[ask.measure]} LIMIT {KEY_LIMIT + 1}",
    )
    return [row["key_id"] for row in rows]


def _by_member(ask: UsageAsk) -> list[dict[str, Any]]:
    return sum_usage(
        [ask.tenant.pk], starts=ask.starts, until=ask.until, by=["bucket", "member_id"], sums=_SUMS, only=ask.only
    )


def _when_dear(ask: UsageAsk, name: str, read: Callable[[], Read]) -> Read:
    if not ask.many_keys:
        return read()
    until = ask.until.timestamp() // KEPT_SECONDS if ask.running else ask.until
    asked = ask.tenant.pk, ask.starts, until, ask.measure, ask.only
    return kept(read, name=name, asked=asked, seconds=KEPT_SECONDS)


def _limited(ask: UsageAsk) -> dict[UUID | None, int]:
    """Requests that limits refused, by key."""
    rows = RefusalMinute.objects.filter(
        tenant_id=ask.tenant.pk, minute__gte=ask.starts[0], minute__lt=ask.until, status=429
    )
    if ask.only.model:
        rows = rows.filter(model=ask.only.model)
    if ask.only.key_id is not None:
        rows = rows.filter(key_id=ask.only.key_id)
    if ask.only.key_name:
        named = ApiKey.objects.filter(tenant=ask.tenant, name__icontains=ask.only.key_name)
        rows = rows.filter(key_id__in=named.values("pk"))
    return {row["key_id"]: row["n"] for row in rows.values("key_id").annotate(n=Sum("refusals")).order_by()}


def _series(
    rows: Sequence[Mapping[str, Any]],
    column: str,
    measure: str,
    buckets: int,
    names: Mapping[Any, str],
    other: str,
) -> list[Series]:
    """The largest by name, the rest as one; colours do not jump, because names break ties."""
    totals: dict[Any, int] = {}
    for row in rows:
        totals[row[column]] = totals.get(row[column], 0) + measured(row, measure)
    ranked = sorted(totals, key=lambda one: (-totals[one], names.get(one, str(one))))
    named = ranked[:MAX_SERIES]
    sums: dict[Any, list[int]] = {one: [0] * buckets for one in named}
    rest = [0] * buckets
    for row in rows:
        sums.get(row[column], rest)[row["bucket"]] += measured(row, measure)
    found = [Series(names.get(one, str(one)), slot, sums[one]) for slot, one in enumerate(named, start=1)]
    return [*found, Series(other, MAX_SERIES + 1, rest)] if len(ranked) > len(named) else found


def _key_series(
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[KeyLine],
    measure: str,
    buckets: int,
    other: str,
    keyless: str,
) -> list[Series]:
    totals = [0] * buckets
    for row in rows:
        totals[row["bucket"]] += measured(row, measure)
    top = keys[:MAX_SERIES]
    found = [
        Series(line.key.name if line.key else str(line.key_id or keyless), slot, line.by_bucket)
        for slot, line in enumerate(top, start=1)
    ]
    # Never below nothing: the keys were summed a moment after the whole.
    rest = [max(0, total - sum(line.by_bucket[place] for line in top)) for place, total in enumerate(totals)]
    return [*found, Series(other, MAX_SERIES + 1, rest)] if any(rest) else found


def _added(rows: Sequence[Mapping[str, Any]]) -> UsageSums:
    return sums_of({name: sum(row[name] for row in rows) for name in _SUMS})

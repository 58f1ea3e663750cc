"""Requests that limits refused, over time: by limit, key or model. From sums by the minute; refusals are no rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import DateTimeField, F, Func, IntegerField, Sum, Value

from dashboard.charts.usage import MAX_SERIES, Series
from dashboard.limit_words import metric_word, window_word
from tenants.models import ApiKey, RefusalMinute, Tenant

GROUPS: Final = ("limit", "key", "model")
MOST_LINES: Final = 50


@dataclass(frozen=True, slots=True)
class RefusalLine:
    """Refusals of one limit, key and model. `metric` is empty where it was not a limit of the tenant's that refused."""

    code: str
    metric: str
    window: str
    model: str
    key: ApiKey | None
    key_id: UUID | None
    refusals: int


@dataclass(frozen=True, slots=True)
class History:
    """`lines`: the most, `more` where there are others."""

    total: int
    series: Sequence[Series]
    lines: Sequence[RefusalLine]
    more: bool


def read_history(
    tenant: Tenant, *, starts: Sequence[datetime], until: datetime, group: str, other: str, keyless: str
) -> History:
    """Three queries. `other`: the word for what is not among the largest; `keyless`: for requests without a key."""
    columns = {"limit": ("metric", "window", "code"), "key": ("key_id",), "model": ("model",)}[group]
    rows = RefusalMinute.objects.filter(tenant_id=tenant.pk, minute__gte=starts[0], minute__lt=until, status=429)
    bucket = Func(
        F("minute"),
        Value(list(starts), output_field=ArrayField(DateTimeField())),
        function="width_bucket",
        output_field=IntegerField(),
    )
    found = list(
        rows.annotate(bucket=bucket).values("bucket", *columns).annotate(n=Sum("refusals")).order_by("bucket", *columns)
    )
    wide = list(
        rows.values("code", "metric", "window", "model", "key_id")
        .annotate(n=Sum("refusals"))
        .order_by("-n", "metric", "window", "model", "key_id")[: MOST_LINES + 1]
    )
    ids = {row["key_id"] for row in (*wide, *(found if group == "key" else ()))} - {None}
    keys = ApiKey.objects.in_bulk(ids)
    totals: dict[tuple[Any, ...], int] = {}
    for row in found:
        one = tuple(row[name] for name in columns)
        totals[one] = totals.get(one, 0) + row["n"]
    top = sorted(totals, key=lambda one: (-totals[one], str(one)))[:MAX_SERIES]
    sums: dict[tuple[Any, ...], list[int]] = {one: [0] * len(starts) for one in top}
    rest = [0] * len(starts)
    for row in found:
        sums.get(tuple(row[name] for name in columns), rest)[row["bucket"] - 1] += row["n"]
    series = [Series(_name(group, one, keys, keyless), slot, sums[one]) for slot, one in enumerate(top, start=1)]
    if len(totals) > len(top):
        series.append(Series(other, MAX_SERIES + 1, rest))
    return History(
        total=sum(totals.values()),
        series=series,
        lines=[
            RefusalLine(
                row["code"],
                row["metric"],
                row["window"],
                row["model"],
                keys.get(row["key_id"]),
                row["key_id"],
                row["n"],
            )
            for row in wide[:MOST_LINES]
        ],
        more=len(wide) > MOST_LINES,
    )


def _name(group: str, one: tuple[Any, ...], keys: dict[UUID, ApiKey], keyless: str) -> str:
    if group == "limit":
        metric, window, code = one
        return f"{metric_word(metric)} / {window_word(window)}" if metric else str(code)
    if group == "key":
        key = keys.get(one[0])
        return key.name if key else str(one[0] or keyless)
    return one[0] or "–"

"""What a tenant's month costs: by model and key, with adjustments and the pool's time beside it.

A month is one of the tenant's calendar; a request belongs to it by when it began (as its minute does), an hour of
the pool by when the hour began. The bill is the cost of requests and the adjustments. GPU time is shown, not billed: it
is shared out after the fact, so that no limit of money could hold it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

from django.db.models import F, Sum

from tenants.models import Adjustment, ApiKey, GpuShare, Installation, Tenant
from tenants.policies.money import amount_of
from tenants.policies.periods import month_of, month_period
from tenants.reads.usage import has_more_lines, sum_usage

MOST_LINES: Final = 10_000
"""Lines of one statement; one that would have more has a line for each model, whatever the key."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one key used of one model. `cached_tokens` are part of `input_tokens`; money in millionths."""

    model: str
    key_id: UUID | None  # None: requests that no key made, or whatever the key: see Statement.by_key
    key_name: str  # empty when there is no such key (any more)
    key_masked: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class AdjustmentLine:
    id: UUID
    kind: str
    amount_micros: int
    reason: str
    usage_record_id: UUID | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GpuLine:
    """GPU time of one model, in milliseconds of one GPU."""

    model: str
    busy_ms: int
    idle_ms: int
    warm_ms: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One month. Amounts in millionths of `currency`."""

    tenant_id: UUID
    tenant_slug: str
    tenant_name: str
    month: str
    time_zone: str
    since: datetime
    until: datetime
    closed: bool  # the month is over
    currency: str
    lines: Sequence[Line]  # dearest first
    by_key: bool  # each line is of one key and model; else of a model, whatever the key: see MOST_LINES
    adjustments: Sequence[AdjustmentLine]
    gpu: Sequence[GpuLine]

    @property
    def usage_micros(self) -> int:
        return sum(line.cost_micros for line in self.lines)

    @property
    def adjusted_micros(self) -> int:
        return sum(line.amount_micros for line in self.adjustments)

    @property
    def total_micros(self) -> int:
        """What the tenant owes; below zero when more was credited than used."""
        return self.usage_micros + self.adjusted_micros

    @property
    def gpu_micros(self) -> int:
        """For information: what the pool's time was worth."""
        return sum(line.cost_micros for line in self.gpu)

    @property
    def requests(self) -> int:
        return sum(line.requests for line in self.lines)


def get_currency() -> str:
    """The installation's currency; the usual one before its first start."""
    return Installation.objects.values_list("currency", flat=True).first() or "USD"


def build_statement(tenant: Tenant, month: str, *, now: datetime, named: int = MOST_LINES) -> Statement:
    """The statement of a month such as 2026-11, of the running one as far as it goes.

    `named`: so many lines, the dearest, tell their keys' names; a page that shows a hundred reads no more.
    Raises ValueError for what is no month of this century, or one that has not begun.
    """
    period = month_period(tenant.time_zone, month)
    if period.start > now.timestamp():
        raise ValueError("That month has not begun yet.")
    since, until = datetime.fromtimestamp(period.start, UTC), datetime.fromtimestamp(period.end, UTC)
    lines, by_key = _lines(tenant.pk, since, until, named)
    return Statement(
        tenant_id=tenant.pk,
        tenant_slug=tenant.slug,
        tenant_name=tenant.name,
        month=month,
        time_zone=tenant.time_zone,
        since=since,
        until=until,
        closed=until <= now,
        currency=get_currency(),
        lines=lines,
        by_key=by_key,
        adjustments=[
            AdjustmentLine(row.pk, row.kind, row.amount_micros, row.reason, row.usage_record_id, row.created_at)
            for row in Adjustment.objects.filter(tenant_id=tenant.pk, month=month).order_by("pk")
        ],
        gpu=_gpu_lines(tenant.pk, since, until),
    )


def list_months(tenant: Tenant, *, now: datetime, at_most: int = 24) -> list[str]:
    """Months from the running one back to the one that the tenant was made in, newest first."""
    first = month_of(tenant.time_zone, tenant.created_at.timestamp())
    years, month = map(int, month_of(tenant.time_zone, now.timestamp()).split("-"))
    months: list[str] = []
    while len(months) < at_most and f"{years:04d}-{month:02d}" >= first:
        months.append(f"{years:04d}-{month:02d}")
        years, month = (years, month - 1) if month > 1 else (years - 1, 12)
    return months


def _lines(tenant_id: UUID, since: datetime, until: datetime, named: int) -> tuple[list[Line], bool]:
    """Lines, dearest first, and whether they are by key."""
    sums = ["requests", "input_tokens", "cached_tokens", "output_tokens", "cost_micros"]
    many = has_more_lines(tenant_id, since=since, until=until, than=MOST_LINES)
    rows = [] if many else sum_usage(
        [tenant_id], starts=[since], until=until, by=["model", "key_id"], sums=sums,
        tail=f"ORDER BY sum(cost_micros) DESC, sum(requests) DESC, model, key_id LIMIT {MOST_LINES + 1}",
    )  # fmt: skip
    by_key = not many and len(rows) <= MOST_LINES
    if not by_key:  # a key for each request: nobody reads that, and the sums are what counts
        dearest = "ORDER BY sum(cost_micros) DESC, model"
        rows = sum_usage([tenant_id], starts=[since], until=until, by=["model"], sums=sums, tail=dearest)
    ids = [row["key_id"] for row in rows[:named] if row.get("key_id")]
    keys = ApiKey.objects.only("name", "prefix", "last_four").in_bulk(ids)
    lines = [
        Line(
            **row | {"key_id": row.get("key_id")},
            key_name=keys[row["key_id"]].name if row.get("key_id") in keys else "",
            key_masked=keys[row["key_id"]].masked if row.get("key_id") in keys else "",
        )
        for row in rows
    ]
    return lines, by_key


def _gpu_lines(tenant_id: UUID, since: datetime, until: datetime) -> list[GpuLine]:
    rows = (
        GpuShare.objects.filter(tenant_id=tenant_id, hour__gte=since, hour__lt=until, gpus__gt=0)
        .values("model")
        .annotate(
            busy=Sum(F("busy_ms") * F("gpus")),
            idle=Sum(F("idle_ms") * F("gpus")),
            warm=Sum(F("warm_ms") * F("gpus")),
            cost=Sum("cost_micros"),
        )
        .order_by("model")
    )
    return [GpuLine(row["model"], row["busy"], row["idle"], row["warm"], row["cost"]) for row in rows]


COLUMNS: Final = (
    "kind", "model", "key_id", "key_name", "requests", "input_tokens", "cached_tokens", "output_tokens",
    "gpu_seconds", "amount", "currency", "note",
)  # fmt: skip


def statement_rows(statement: Statement) -> Iterator[Sequence[object]]:
    """The statement as rows of COLUMNS, for core.api.csv: a row for each line, and one for the total.

    Amounts are numbers with all their decimals, so that only texts, which people chose, are guarded against being
    formulas. Rows of kind `gpu` are not part of the total.
    """
    currency = statement.currency
    whose = None if statement.by_key else "all keys"
    for line in statement.lines:
        yield (
            "usage", line.model, line.key_id, line.key_name, line.requests, line.input_tokens, line.cached_tokens,
            line.output_tokens, None, _number(line.cost_micros), currency, whose,
        )  # fmt: skip
    for one in statement.adjustments:
        amount = _number(one.amount_micros)
        yield one.kind, None, None, None, None, None, None, None, None, amount, currency, one.reason
    for gpu in statement.gpu:
        seconds = Decimal(gpu.busy_ms + gpu.idle_ms + gpu.warm_ms) / 1000
        cost = _number(gpu.cost_micros)
        yield "gpu", gpu.model, None, None, None, None, None, None, seconds, cost, currency, None
    total = _number(statement.total_micros)
    yield "total", None, None, None, statement.requests, None, None, None, None, total, currency, statement.month


def _number(micros: int) -> Decimal:
    return Decimal(amount_of(micros))

"""Forwarded requests, newest first: a page at a time out of the ledger, whatever is asked of them.

A page costs the same however rare its rows are: behind the most telling filter, whose index is read, at most SCAN rows
are looked through. Where that was not enough, `reached` says how far back the page has looked, and the next one goes on
from there. Nothing here is counted: see tenants.reads.latency for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import F, FloatField, Q, QuerySet
from django.db.models.functions import Cast

from core.ids import uuid7_datetime, uuid7_from
from tenants.models import Tenant, UsageRecord
from tenants.usage import FAILURES

SCAN: Final = 10_000
"""Rows that one page looks through at most."""

SLOW_TTFT_MS: Final = 2_000.0
SLOW_MS: Final = 30_000.0
"""What "slow only" means: a first token after that long, or an end after this."""

OUTCOMES: Final = ("success", "cancelled", *FAILURES)
UNWELL: Final = "unwell"  # any but success
FAILURE: Final = "failures"
FAULT: Final = "faults"  # failures that were not the caller's: what availability counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which requests. None and "" ask for nothing; `since` included, `until` not, both by arrival.

    `outcome` is one of OUTCOMES, or UNWELL, FAILURE or FAULT.
    """

    since: datetime
    until: datetime
    tenant_id: UUID | None = None
    tier: str = ""  # of tenants that are of it now
    key_id: UUID | None = None
    model: str = ""
    version_id: UUID | None = None
    instance_id: UUID | None = None
    outcome: str = ""
    status: int | None = None
    status_class: int | None = None  # 4 for 400 to 499
    error_code: str = ""
    door: str = ""
    api: str = ""
    slow: bool = False
    min_ttft_ms: float | None = None
    min_tpot_ms: float | None = None
    min_queue_ms: float | None = None
    min_duration_ms: float | None = None

    @property
    def narrowed(self) -> bool:
        """Whether it asks for anything but a span of time and a tenant."""
        return bool(
            self.tier or self.key_id or self.model or self.version_id or self.instance_id or self.outcome or self.status
            or self.status_class or self.error_code or self.door or self.api or self.slow
        ) or any(
            least is not None
            for least in (self.min_ttft_ms, self.min_tpot_ms, self.min_queue_ms, self.min_duration_ms)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """One page, newest first. `older` and `newer` are where the neighbours begin; None where there are none.

    `reached` is set where the page looked through SCAN rows without being full: there may be more before it.
    """

    rows: Sequence[UsageRecord]
    older: UUID | None
    newer: UUID | None
    reached: datetime | None


_LAST: Final = (1 << 128) - 1  # of all ids
_TPOT: Final = "greatest(0, duration_ms - ttft_ms) / nullif(greatest(output_tokens, 1) - 1, 0)"
_CONDITIONS: Final[Mapping[str, str]] = {
    "tenant_id": "tenant_id = %(tenant_id)s",
    "tier": "tenant_id IN (SELECT id FROM tenants_tenant WHERE sla_tier = %(tier)s)",
    "key_id": "key_id = %(key_id)s",
    "model": "model = %(model)s",
    "version_id": "version_id = %(version_id)s",
    "instance_id": "instance_id = %(instance_id)s",
    "status": "status = %(status)s",
    "status_class": "status / 100 = %(status_class)s",
    "error_code": "error_code = %(error_code)s",
    "door": "door = %(door)s",
    "api": "api = %(api)s",
    "slow": f"(ttft_ms > {SLOW_TTFT_MS} OR duration_ms > {SLOW_MS})",
    "min_ttft_ms": "ttft_ms > %(min_ttft_ms)s",
    "min_tpot_ms": f"{_TPOT} > %(min_tpot_ms)s",
    "min_queue_ms": "queue_ms > %(min_queue_ms)s",
    "min_duration_ms": "duration_ms > %(min_duration_ms)s",
}
_UNWELL: Final = "outcome <> 'success'"
_OUTCOMES: Final[Mapping[str, str]] = {
    UNWELL: _UNWELL,
    FAILURE: f"{_UNWELL} AND outcome <> 'cancelled'",
    FAULT: f"{_UNWELL} AND (outcome IN ('truncated', 'lost') OR (outcome = 'failed' AND status >= 500))",
}


def find_requests(
    wanted: Wanted, *, before: UUID | None = None, after: UUID | None = None, size: int = 50, scan: int = SCAN
) -> Found:
    """The newest `size` requests, those before `before`, or those just after `after`. Two queries at most."""
    low, high = _id_at(wanted.since), _id_at(wanted.until)
    backwards = after is not None
    if before is not None:
        high = min(high, before)
    if after is not None:
        low = max(low, _beside(after, 1))
    looked, rest = _split(wanted)
    values: dict[str, Any] = {name: getattr(wanted, name) for name in _CONDITIONS} | {
        "outcome": wanted.outcome, "low": low, "high": high, "scan": scan, "size": size + 1,
    }  # fmt: skip
    way = "ASC" if backwards else "DESC"
    inner = " AND ".join(["id >= %(low)s AND id < %(high)s", *looked])
    outer = f"WHERE {' AND '.join(rest)}" if rest else ""
    rows = list(
        UsageRecord.objects.raw(
            f"SELECT * FROM (SELECT * FROM tenants_usagerecord WHERE {inner} ORDER BY id {way} "  # noqa: S608  # ours
            f"LIMIT %(scan)s) AS looked {outer} ORDER BY id {way} LIMIT %(size)s",
            values,
        )
    )
    more = len(rows) > size
    rows = rows[:size]
    stopped = None if more or not rest else _last_looked(inner, way, values)
    if backwards:
        rows.reverse()
    if backwards:
        assert after is not None
        newer = rows[0].pk if more else stopped
        return Found(rows, rows[-1].pk if rows else _beside(after, 1), newer, None)
    newer = None if before is None else rows[0].pk if rows else _beside(before, -1)
    reached = None if stopped is None else uuid7_datetime(stopped)
    return Found(rows, rows[-1].pk if more else stopped, newer, reached)


def _beside(row: UUID, step: int) -> UUID:
    """The id right before or after; addresses may name the very first and last, which have none beyond."""
    return UUID(int=min(max(row.int + step, 0), _LAST))


def _last_looked(inner: str, way: str, values: dict[str, Any]) -> UUID | None:
    """The last row that a page has looked at, where there may be more behind it."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM tenants_usagerecord WHERE {inner} ORDER BY id {way} OFFSET %(last)s LIMIT 1",  # noqa: S608
            {**values, "last": values["scan"] - 1},
        )
        row = cursor.fetchone()
    return None if row is None else row[0]


def _split(wanted: Wanted) -> tuple[list[str], list[str]]:
    """The condition whose index is read, and those that its rows are looked through for."""
    first: list[str] = []
    rest = {name: text for name, text in _CONDITIONS.items() if getattr(wanted, name) not in (None, "", False)}
    outcome = _OUTCOMES.get(wanted.outcome, "outcome = %(outcome)s" if wanted.outcome else "")
    unwell = bool(outcome) and wanted.outcome != "success"
    if "key_id" in rest:
        first.append(rest.pop("key_id"))
    elif unwell:
        first.append(_UNWELL)
        if "tenant_id" in rest:
            first.append(rest.pop("tenant_id"))
    elif "tenant_id" in rest:
        first.append(rest.pop("tenant_id"))
    elif "model" in rest:
        first.append(rest.pop("model"))
    # A key is one tenant's: with both, the tenant has to hold as well.
    return first, [*rest.values(), *([f"({outcome})"] if outcome else [])]


def all_requests(wanted: Wanted) -> QuerySet[UsageRecord]:
    """All of them, for a file; not sorted yet."""
    found = UsageRecord.objects.filter(pk__gte=_id_at(wanted.since), pk__lt=_id_at(wanted.until))
    equal = ("tenant_id", "key_id", "model", "version_id", "instance_id", "status", "error_code", "door", "api")
    for name in equal:
        if value := getattr(wanted, name):
            found = found.filter(**{name: value})
    if wanted.tier:
        found = found.filter(tenant_id__in=Tenant.objects.filter(sla_tier=wanted.tier).values("pk"))
    if wanted.status_class:
        found = found.filter(status__gte=wanted.status_class * 100, status__lt=wanted.status_class * 100 + 100)
    if wanted.outcome:
        found = found.filter(_outcome(wanted.outcome))
    if wanted.slow:
        found = found.filter(Q(ttft_ms__gt=SLOW_TTFT_MS) | Q(duration_ms__gt=SLOW_MS))
    if wanted.min_tpot_ms is not None:
        found = found.filter(output_tokens__gt=1).annotate(
            tpot_ms=(F("duration_ms") - F("ttft_ms")) / (Cast("output_tokens", FloatField()) - 1)
        )
        found = found.filter(tpot_ms__gt=wanted.min_tpot_ms)
    for name in ("ttft_ms", "queue_ms", "duration_ms"):
        least = getattr(wanted, f"min_{name}")
        if least is not None:
            found = found.filter(**{f"{name}__gt": least})
    return found


def _outcome(name: str) -> Q:
    if name == UNWELL:
        return ~Q(outcome="success")
    if name == FAILURE:
        return Q(outcome__in=FAILURES)
    if name == FAULT:
        return Q(outcome__in=("truncated", "lost")) | Q(outcome="failed", status__gte=500)
    return Q(outcome=name)


_LONGEST: Final = timedelta(days=2)
"""No request takes longer, its row's way to the ledger included; older partitions are not looked at."""


def newest_requests(*, tenant_id: UUID | None, most: int, now: datetime) -> list[UsageRecord]:
    """Those that ended last, of all or of a tenant, last one first: by when their rows were written, not by arrival."""
    found = UsageRecord.objects.filter(pk__gte=_id_at(now - _LONGEST)).order_by("-settled_at", "-pk")
    return list((found if tenant_id is None else found.filter(tenant_id=tenant_id))[:most])


def get_request(request_id: UUID, *, tenant_id: UUID | None) -> UsageRecord | None:
    """One of the tenant's, or with None of anybody's."""
    found = UsageRecord.objects.filter(pk=request_id)
    return (found if tenant_id is None else found.filter(tenant_id=tenant_id)).first()


def _id_at(moment: datetime) -> UUID:
    return uuid7_from(max(0, int(moment.timestamp() * 1000)))

"""A statement is the sum of the ledger's rows of the tenant's month, to the millionth, in any zone."""

import contextlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, InternalError, ProgrammingError, connection, transaction
from django.db.models import Sum

from core.ids import uuid7_from
from tenants.actor import SYSTEM, user_actor
from tenants.models import Adjustment, AuditEvent, GpuShare, Tenant, UsageRecord
from tenants.services.adjustments import adjust_bill
from tenants.services.errors import InvalidInput
from tenants.services.ledger import record_usage
from tenants.services.rollups import prune_minutes
from tenants.statements import COLUMNS, build_statement, list_months, statement_rows
from tenants.usage import UsageRow
from tests.factories import make_key, make_tenant
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db

PROCESS = uuid4()
NOW = datetime(2026, 12, 20, tzinfo=UTC)
_numbers = iter(range(1, 1_000_000))


def _row(tenant: Tenant, at: datetime, **more: Any) -> UsageRow:
    number, seconds = next(_numbers), at.timestamp()
    return usage_row(
        PROCESS, number, id=uuid7_from(int(seconds * 1000), number % 4096, number), tenant_id=tenant.pk,
        started_at=seconds, **{"cost_micros": number, "cached_tokens": number % 3, **more},
    )  # fmt: skip


def _this_month() -> str:
    return f"{datetime.now(UTC):%Y-%m}"


def _tenant(zone: str) -> Tenant:
    tenant = make_tenant()
    Tenant.objects.filter(pk=tenant.pk).update(time_zone=zone)
    tenant.refresh_from_db()
    return tenant


@pytest.mark.parametrize(
    "at",
    [
        [datetime(2026, 11, day, 9, tzinfo=UTC) for day in (3, 4, 5)],
        [datetime(2026, 10, 31, 19, tzinfo=UTC)],  # within the hours before the month's first day in UTC
    ],
)
def test_a_statement_of_too_many_lines_has_one_for_each_model(
    at: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.statements.MOST_LINES", 3)
    tenant = _tenant("Asia/Kolkata")
    rows = [
        _row(tenant, at[n % len(at)], key_id=key, model=f"m{n % 2}", cost_micros=10)
        for n, key in enumerate([make_key(tenant).key.pk for _ in range(4)])
    ]
    record_usage(rows[:3])
    statement = build_statement(tenant, "2026-11", now=NOW)
    assert ([line.cost_micros for line in statement.lines], statement.by_key) == ([10, 10, 10], True)
    record_usage(rows[3:])
    statement = build_statement(tenant, "2026-11", now=NOW)
    assert [(line.model, line.key_id, line.cost_micros) for line in statement.lines] == [
        ("m0", None, 20),
        ("m1", None, 20),
    ]
    assert (statement.usage_micros, statement.by_key) == (40, False)
    assert [row[-1] for row in statement_rows(statement)][:2] == ["all keys", "all keys"]


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("UTC", "2026-11", 720),
        ("Europe/Berlin", "2026-03", 743),  # an hour was skipped
        ("Europe/Berlin", "2026-10", 745),  # and came twice
        ("Asia/Kolkata", "2026-11", 720),
        ("Asia/Kathmandu", "2026-02", 672),
        ("Pacific/Chatham", "2026-04", 721),
        ("America/Sao_Paulo", "2026-11", 720),
    ],
)
def test_a_statement_is_the_sum_of_the_months_rows(zone: str, month: str, hours: int) -> None:
    tenant, other = _tenant(zone), make_tenant()
    keys = [make_key(tenant).key.pk, make_key(tenant).key.pk, None]
    year, number = map(int, month.split("-"))
    first = datetime(year, number, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    last = first + timedelta(hours=hours)
    moments = [first + timedelta(minutes=373 * step, seconds=step % 60) for step in range(-10, 130)]
    moments += [edge + step for edge in (first, last) for step in (timedelta(seconds=-1), timedelta(0))]
    moments += [edge + timedelta(minutes=minute) for edge in (first, last) for minute in (-29, -1, 1, 29, 44)]
    rows = [_row(tenant, at, key_id=keys[n % 3], model=f"m{n % 2}") for n, at in enumerate(moments)]
    record_usage([*rows, _row(other, first)])
    prune_minutes(now=NOW, older_than=timedelta(0))  # all that may go

    statement = build_statement(tenant, month, now=NOW)

    assert (statement.since, statement.until, statement.closed) == (first, last, True)
    ledger = UsageRecord.objects.filter(tenant_id=tenant.pk, started_at__gte=first, started_at__lt=last)
    wanted = ledger.values("model", "key_id").annotate(
        n=Sum("attempts"), i=Sum("input_tokens"), c=Sum("cached_tokens"), o=Sum("output_tokens"), m=Sum("cost_micros")
    )
    assert {
        (line.model, line.key_id): (
            line.requests,
            line.input_tokens,
            line.cached_tokens,
            line.output_tokens,
            line.cost_micros,
        )
        for line in statement.lines
    } == {(row["model"], row["key_id"]): (row["n"], row["i"], row["c"], row["o"], row["m"]) for row in wanted}
    assert statement.total_micros == ledger.aggregate(m=Sum("cost_micros"))["m"]


def test_months_follow_each_other_and_begin_with_the_tenant() -> None:
    tenant = _tenant("Asia/Tokyo")
    Tenant.objects.filter(pk=tenant.pk).update(created_at=datetime(2026, 9, 30, 16, tzinfo=UTC))  # October in Tokyo
    tenant.refresh_from_db()
    assert list_months(tenant, now=datetime(2026, 12, 31, 16, tzinfo=UTC)) == [
        "2027-01", "2026-12", "2026-11", "2026-10",
    ]  # fmt: skip


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "1999-12", "2026-12-01", "abc", "", "2027-01", "２026-11"])
def test_what_is_no_month_that_began_is_refused(month: str) -> None:
    with pytest.raises(ValueError):
        build_statement(make_tenant(), month, now=NOW)


def test_adjustments_change_the_total_and_gpu_time_is_only_shown() -> None:
    tenant = make_tenant()
    Tenant.objects.filter(pk=tenant.pk).update(created_at=datetime(2026, 10, 1, tzinfo=UTC))
    tenant.refresh_from_db()
    record_usage([_row(tenant, NOW, cost_micros=5_000_000, model="=cmd|' /C calc'!A0")])
    month = "2026-11"
    record_usage([_row(tenant, datetime(2026, 11, 5, tzinfo=UTC), cost_micros=5_000_000, model="=1+1", key_id=None)])
    person = user_actor(uuid4())
    made = adjust_bill(tenant, kind="credit", amount_micros=-1_500_000, month=month, reason="@sorry", actor=person)
    assert (made.created_by, AuditEvent.objects.get(action="adjustment.made").subject_id) == (person.id, made.pk)
    GpuShare.objects.create(
        hour=datetime(2026, 11, 5, tzinfo=UTC), instance_id=uuid4(), tenant_id=tenant.pk, model="m", gpus=2,
        busy_ms=1000, idle_ms=500, warm_ms=250, cost_micros=77,
    )  # fmt: skip
    statement = build_statement(tenant, month, now=NOW)
    assert (statement.usage_micros, statement.adjusted_micros, statement.total_micros) == (
        5_000_000, -1_500_000, 3_500_000,
    )  # fmt: skip
    assert (statement.gpu_micros, statement.gpu[0].busy_ms) == (77, 2000)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in statement_rows(statement)]
    assert [(row["kind"], row["amount"]) for row in rows] == [
        ("usage", Decimal(5)), ("credit", Decimal("-1.5")), ("gpu", Decimal("0.000077")), ("total", Decimal("3.5")),
    ]  # fmt: skip
    assert (rows[0]["model"], rows[1]["note"], rows[2]["gpu_seconds"]) == ("=1+1", "@sorry", Decimal("3.5"))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"amount_micros": 0}, "amount"),
        ({"amount_micros": 5}, "amount"),
        ({"amount_micros": -(10**13)}, "amount"),
        ({"month": "2019-12"}, "month"),
        ({"kind": "gift"}, "kind"),
        ({"month": "2026-13"}, "month"),
        ({"month": "2099-01"}, "month"),
        ({"reason": "  "}, "reason"),
        ({"reason": "r" * 201}, "reason"),
        ({"usage_record_id": uuid4()}, "usage_record_id"),
    ],
)
def test_a_wrong_adjustment_is_refused(more: dict[str, Any], field: str) -> None:
    values: dict[str, Any] = {"kind": "credit", "amount_micros": -5, "month": _this_month(), "reason": "r"}
    with pytest.raises(InvalidInput) as refused:
        adjust_bill(make_tenant(), actor=SYSTEM, **{**values, **more})
    assert refused.value.field == field
    assert not Adjustment.objects.exists()


def test_an_adjustment_is_never_changed_or_taken_back() -> None:
    tenant = make_tenant()
    made = adjust_bill(tenant, kind="correction", amount_micros=5, month=_this_month(), reason="r", actor=SYSTEM)
    for statement in (
        "UPDATE tenants_adjustment SET amount_micros = 1",
        "DELETE FROM tenants_adjustment",
    ):
        with pytest.raises((InternalError, ProgrammingError)), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    with pytest.raises(IntegrityError), transaction.atomic():
        Adjustment.objects.create(tenant_id=tenant.pk, kind="credit", amount_micros=5, month=_this_month(), reason="r")
    assert Adjustment.objects.get() == made


def test_corrections_of_a_row_never_take_off_more_than_it_cost() -> None:
    tenant, now = make_tenant(), datetime.now(UTC)
    row = _row(tenant, now, cost_micros=100)
    record_usage([row])
    month = f"{now:%Y-%m}"
    of_row: dict[str, Any] = {"month": month, "reason": "r", "usage_record_id": row.id, "actor": SYSTEM}
    adjust_bill(tenant, kind="correction", amount_micros=-60, **of_row)
    for kind, amount in (("correction", -41), ("credit", -101)):
        # A budget would count below nothing, and let more pass than it is.
        refusal = pytest.raises(InvalidInput) if kind == "correction" else contextlib.nullcontext()
        with refusal:
            adjust_bill(tenant, kind=kind, amount_micros=amount, **of_row)
    adjust_bill(tenant, kind="correction", amount_micros=-40, **of_row)
    adjust_bill(tenant, kind="correction", amount_micros=7, **of_row)
    assert build_statement(tenant, month, now=now).total_micros == 100 - 60 - 101 - 40 + 7

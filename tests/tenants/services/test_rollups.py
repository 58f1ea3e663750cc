"""Sums of the ledger: made anew from rows, also while rows are added, and thinned out without changing what is read."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.db.models import Sum

from core.ids import uuid7_from
from tenants.models import (
    LatencyHour,
    LatencyMinute,
    ModelLatencyHour,
    ModelLatencyMinute,
    Tenant,
    TenantDay,
    TenantHour,
    UsageDay,
    UsageHour,
    UsageMinute,
)
from tenants.policies.periods import hours_that_days_share, period_at
from tenants.reads.usage import usage_totals
from tenants.services import latency
from tenants.services.ledger import record_usage
from tenants.services.rollups import MINUTES_KEPT, prune_minutes, rebuild_day
from tenants.usage import UsageRow
from tests.factories import make_tenant
from tests.tenants.usage_rows import TENANT, usage_row
from tests.waiting import wait_until

PROCESS = uuid4()
DAY = datetime(2026, 11, 10, tzinfo=UTC)
_numbers = iter(range(1, 1_000_000))


def _row(at: datetime, **more: Any) -> UsageRow:
    """A row that began at `at`, with an id of that time."""
    number = next(_numbers)
    seconds = at.timestamp()
    return usage_row(
        PROCESS, number, id=uuid7_from(int(seconds * 1000), number % 4096, number), started_at=seconds, **more
    )


def _all() -> list[list[tuple[Any, ...]]]:
    sums = ("tenant_id", "key_id", "model", "requests", "output_tokens", "cost_micros")
    whole = tuple(name for name in sums if name != "key_id")
    return [
        sorted(UsageMinute.objects.values_list("minute", *sums)),
        sorted(UsageHour.objects.values_list("hour", *sums)),
        sorted(UsageDay.objects.values_list("day", *sums)),
        sorted(TenantHour.objects.values_list("hour", *whole)),
        sorted(TenantDay.objects.values_list("day", *whole)),
    ]


@pytest.mark.django_db
def test_a_day_made_anew_is_what_it_was_and_its_neighbours_stay() -> None:
    record_usage([_row(DAY + timedelta(minutes=17 * step), cost_micros=step) for step in range(-30, 130)])
    before = _all()
    UsageHour.objects.filter(hour__gte=DAY, hour__lt=DAY + timedelta(hours=5)).update(requests=99)
    UsageMinute.objects.filter(minute__gte=DAY + timedelta(hours=9), minute__lt=DAY + timedelta(days=1)).delete()
    UsageDay.objects.filter(day=DAY).delete()
    TenantHour.objects.filter(hour=DAY + timedelta(hours=7)).update(requests=99)
    TenantDay.objects.filter(day=DAY).delete()
    assert rebuild_day(DAY) == 85
    assert _all() == before
    assert rebuild_day(DAY + timedelta(hours=7)) == 85
    assert _all() == before


@pytest.mark.django_db
def test_the_command_says_what_it_made_and_refuses_a_range_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    record_usage([_row(DAY)])
    call_command("rollups", "--since", "2026-11-09", "--until", "2026-11-10")
    assert capsys.readouterr().out == "2026-11-09: 0 requests\n2026-11-10: 1 requests\n"
    with pytest.raises(CommandError):
        call_command("rollups", "--since", "2026-11-10", "--until", "2026-11-09")


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(60)


@pytest.mark.django_db(transaction=True)
def test_rows_that_are_added_while_a_day_is_made_anew_are_counted_once(threads: list[threading.Thread]) -> None:
    record_usage([_row(DAY)])

    def in_thread(work: Any) -> None:
        def run() -> None:
            try:
                work()
            finally:
                connections.close_all()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    with transaction.atomic():  # a drain that has added its rows and not committed yet
        record_usage([_row(DAY + timedelta(minutes=1))])
        in_thread(lambda: rebuild_day(DAY))
        wait_until(lambda: _waiting() == 1, "the rebuild to wait for the drain")
        in_thread(lambda: record_usage([_row(DAY + timedelta(minutes=2))]))  # and one that comes behind the rebuild
        wait_until(lambda: _waiting() == 2, "the second drain to wait")
    for thread in threads:
        thread.join(60)
    usage = (UsageMinute, UsageHour, UsageDay, TenantHour, TenantDay)
    tables = (*usage, LatencyMinute, LatencyHour, ModelLatencyMinute, ModelLatencyHour)
    assert [table._default_manager.aggregate(n=Sum("requests"))["n"] for table in tables] == [3] * 9


@pytest.mark.django_db(transaction=True)
def test_drains_get_their_turn_between_the_hours_whose_histograms_are_made_anew(
    threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_usage([_row(DAY + timedelta(hours=hour)) for hour in (0, 5, 23)])
    remake, hours = latency.remake_latency, list[int]()

    def remade(since: datetime, until: datetime, ids: tuple[UUID, UUID]) -> None:
        remake(since, until, ids)
        hours.append(since.hour)
        if since.hour == 5:  # one that comes now, for an hour that is made and for one that is not
            drain = threading.Thread(target=drained)
            threads.append(drain)
            drain.start()
            drain.join(60)

    def drained() -> None:
        try:
            record_usage([_row(DAY + timedelta(hours=hour, minutes=1)) for hour in (5, 23)])
        finally:
            connections.close_all()

    monkeypatch.setattr(latency, "remake_latency", remade)
    assert rebuild_day(DAY) == 3
    assert hours == list(range(24))
    assert sorted(LatencyHour.objects.values_list("hour__hour", "requests")) == [(0, 1), (5, 2), (23, 2)]
    assert sorted(UsageHour.objects.values_list("hour__hour", "requests")) == [(0, 1), (5, 2), (23, 2)]


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(  # in this database: others are on the same server
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
            " WHERE NOT granted AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.django_db
def test_old_minutes_go_only_where_their_hour_is_and_not_around_the_first_of_a_month() -> None:
    old = DAY + timedelta(hours=3, minutes=20)
    first = datetime(2026, 11, 30, 18, 31, tzinfo=UTC)  # December in Kolkata
    record_usage([_row(old), _row(old + timedelta(hours=1)), _row(first), _row(first + timedelta(days=60))])
    UsageHour.objects.filter(hour=old.replace(minute=0) + timedelta(hours=1)).delete()
    before = usage_totals(TENANT, since=DAY, until=first + timedelta(minutes=1))
    now = first + MINUTES_KEPT
    assert prune_minutes(now=now, most=1) == 1
    assert sorted(UsageMinute.objects.values_list("minute", flat=True)) == [
        old + timedelta(hours=1), first, first + timedelta(days=60),
    ]  # fmt: skip
    assert prune_minutes(now=now) == 0
    assert usage_totals(TENANT, since=DAY, until=first + timedelta(minutes=1)) == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        ("Asia/Kolkata", {18}),
        ("Asia/Kathmandu", {18}),
        ("America/St_Johns", {2, 3}),
        ("Pacific/Chatham", {10, 11}),
        ("Australia/Lord_Howe", {13}),
        ("Europe/Berlin", set()),
    ],
)
def test_days_of_zones_that_are_not_whole_hours_off_are_told_when_minutes_are_gone(zone: str, hours: set[int]) -> None:
    now = datetime(2027, 3, 1, tzinfo=UTC)
    assert hours_that_days_share(zone, now.timestamp()) == hours
    tenant = make_tenant()
    Tenant.objects.filter(pk=tenant.pk).update(time_zone=zone)
    for base in (datetime(2026, 7, 10, tzinfo=UTC), datetime(2026, 12, 12, tzinfo=UTC)):  # summer and winter
        record_usage([_row(base + timedelta(minutes=15 * step), tenant_id=tenant.pk) for step in range(3 * 96)])
        day = period_at("day", zone, (base + timedelta(days=1)).timestamp())
        since, until = datetime.fromtimestamp(day.start, UTC), datetime.fromtimestamp(day.end, UTC)
        assert prune_minutes(now=now, older_than=timedelta(days=31)) > 200
        assert usage_totals(tenant.pk, since=since, until=until).requests == 96


@pytest.mark.django_db
def test_what_is_read_out_of_days_is_what_is_read_out_of_minutes() -> None:
    record_usage([_row(DAY + timedelta(minutes=37 * step)) for step in range(200)])
    for since, until in (
        (timedelta(0), timedelta(days=3)),
        (timedelta(hours=5, minutes=30), timedelta(days=3, hours=5, minutes=30)),
        (timedelta(minutes=7), timedelta(hours=2)),
        (timedelta(minutes=7), timedelta(minutes=7)),
    ):
        wanted = UsageMinute.objects.filter(minute__gte=DAY + since, minute__lt=DAY + until)
        total = wanted.aggregate(n=Sum("requests", default=0))["n"]
        assert usage_totals(TENANT, since=DAY + since, until=DAY + until).requests == total


@pytest.mark.django_db(transaction=True)
def test_drains_that_sum_for_the_same_tenants_at_once_wait_for_each_other_and_lose_nothing(
    threads: list[threading.Thread],
) -> None:
    keys: list[UUID | None] = [uuid4(), uuid4(), uuid4(), None]
    failures: list[BaseException] = []

    def drain(step: int) -> None:
        try:
            for batch in range(12):
                order = range(40) if (batch + step) % 2 else range(39, -1, -1)
                record_usage(
                    [_row(DAY + timedelta(minutes=7 * n), key_id=keys[n % 4], model=f"m{n % 3}") for n in order]
                )
        except Exception as error:  # noqa: BLE001  # told by the test
            failures.append(error)
        finally:
            connections.close_all()

    threads += [threading.Thread(target=drain, args=(step,)) for step in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    tables = (UsageMinute, UsageHour, UsageDay, TenantHour, TenantDay)
    assert [table._default_manager.aggregate(n=Sum("requests"))["n"] for table in tables] == [3 * 12 * 40] * 5

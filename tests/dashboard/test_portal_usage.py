"""The usage page: groups, measures, filters, budget, CSV; in a constant number of queries."""

import csv
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.exporting import write_next_export
from dashboard.models import Export
from dashboard.reads.usage import UsageAsk, read_usage
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import ApiKey, RefusalMinute, Tenant, TenantRole, User
from tenants.reads.usage import Only
from tenants.services.limits import create_limit
from tests.dashboard.people import tenant
from tests.dashboard.portal_rows import MILLION, busy, refused, used
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db
QUERIES = 26


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER, dev=TenantRole.DEVELOPER, vic=TenantRole.VIEWER)
    client.force_login(User.objects.get(email="vic@example.com"))
    return made


def make_key(acme: Tenant, name: str, maker: str | None = None) -> ApiKey:
    by = User.objects.get(email=f"{maker}@example.com").pk if maker else None
    return services.create_api_key(acme, name=name, actor=SYSTEM, created_by=by).key


def sums(client: Client, query: str) -> dict[str, int]:
    series = client.get(f"/t/acme/usage/?{query}").context["series"]
    return {one.name: sum(one.tokens) for one in series}


@pytest.mark.shows("U3", "U6")
def test_use_is_told_apart_by_model_key_and_member_and_counted_three_ways(client: Client, acme: Tenant) -> None:
    now = timezone.now()
    one, two, nobodys = make_key(acme, "one", "ada"), make_key(acme, "two", "dev"), make_key(acme, "three")
    used(one, at=now, model="big", requests=10, tokens=400, cost_micros=5)
    used(two, at=now, model="big", requests=1, tokens=40, cost_micros=50)
    used(two, at=now, model="small", requests=2, tokens=80, cost_micros=7)
    used(nobodys, at=now - timedelta(hours=3), model="small", requests=3, tokens=4, cost_micros=1)
    assert sums(client, "") == {"big": 550, "small": 105}
    assert sums(client, "group=key") == {"one": 500, "two": 150, "three": 5}
    assert sums(client, "group=member") == {"Ada": 500, "Dev": 150, "Nobody’s key, or a token": 5}
    assert sums(client, "group=member&show=requests") == {"Ada": 10, "Dev": 3, "Nobody’s key, or a token": 3}
    assert sums(client, "group=key&show=cost") == {"one": 5, "two": 57, "three": 1}
    assert sums(client, "model=small") == {"small": 105}
    assert sums(client, f"key={two.pk}") == {"big": 50, "small": 100}
    assert sums(client, "group=key&q=TWO") == {"two": 150}
    page = client.get("/t/acme/usage/?model=small&group=key")
    assert page.context["totals"].requests == 5
    assert page.context["usage"].models == ["big", "small"]  # the choice does not shrink with what is chosen


def test_what_is_beyond_the_largest_is_one_series_and_nothing_is_lost(client: Client, acme: Tenant) -> None:
    for number in range(9):
        used(
            make_key(acme, f"key-{number}"), at=timezone.now(), model=f"m{number}", requests=1, tokens=8 * (number + 1)
        )
    by_model, by_key = sums(client, ""), sums(client, "group=key")
    assert by_model.pop("Other models") == by_key.pop("Other keys") == 10 + 20 + 30
    assert len(by_model) == len(by_key) == 6


@pytest.mark.shows("U4")
def test_a_member_over_the_budget_still_sees_usage_and_that_it_is_used_up(client: Client, acme: Tenant) -> None:
    create_limit(tenant=acme, metric="money", window="month", amount=MILLION, alert_shares=[90], actor=SYSTEM)
    used(make_key(acme, "k", "vic"), at=timezone.now(), model="big", requests=1, tokens=8, cost_micros=2 * MILLION)
    page = client.get("/t/acme/usage/")
    budget = page.context["budget"]
    assert (budget.forecast.used, budget.amount, budget.share, budget.tone) == (2 * MILLION, MILLION, 2.0, "bad")
    assert "used up: requests are refused" in page.content.decode()
    assert page.context["totals"].requests == 1


def test_refused_requests_are_counted_beside_and_other_tenants_are_not(client: Client, acme: Tenant) -> None:
    now, key = timezone.now(), make_key(acme, "k")
    used(key, at=now, model="big", requests=9, tokens=8)
    refused(acme, key, at=now, metric="requests", window="minute", refusals=1, model="big")
    refused(tenant("bank"), key, at=now, metric="requests", window="minute", refusals=100, model="big")
    page = client.get("/t/acme/usage/")
    assert page.context["usage"].limited == 1
    assert page.context["usage"].limited_share == 0.1
    assert RefusalMinute.objects.count() == 2


@pytest.mark.shows("U9")
def test_a_span_of_ones_own_is_cut_by_the_zone_in_the_address(client: Client, acme: Tenant) -> None:
    now = timezone.now()
    used(make_key(acme, "k"), at=now - timedelta(days=2), model="big", requests=1, tokens=8)
    since = (now - timedelta(days=20)).strftime("%Y-%m-%dT00:00")
    page = client.get(f"/t/acme/usage/?from={since}&zone=Asia/Tokyo")
    starts = [start for start, _ in page.context["table"]]
    assert starts[0].strftime("%Y-%m-%dT%H:%M") == since
    assert {(start.hour, start.minute) for start in starts} == {(0, 0)}
    assert {start.utcoffset() for start in starts} == {timedelta(hours=9)}
    assert sum(sum(values) for _, values in page.context["table"]) == 10
    assert "times in Asia/Tokyo" in page.content.decode()


@pytest.mark.parametrize("query", [
    "group=%00", "show=x", "key=%00", "key=abc", "model=%00", "q=%00", "from=x", "from=2026-01-01T00:00&to=2020-01-01",
    "from=0001-01-01T00:00", "range=%00&zone=%00", "format=csv&group=x", "from=2999-01-01T00:00",
])  # fmt: skip
def test_no_address_breaks_the_page(client: Client, acme: Tenant, query: str) -> None:
    assert client.get(f"/t/acme/usage/?{query}").status_code == 200


def test_csv_has_every_group_of_every_bucket_and_no_formula(client: Client, acme: Tenant) -> None:
    now = timezone.now()
    for number in range(8):
        key = make_key(acme, f"=cmd{number}")
        used(key, at=now, model=f"m{number}", requests=1, tokens=8, cost_micros=1_500_000)
    lines = list(csv.DictReader(b"".join(client.get("/t/acme/usage/?format=csv&group=key")).decode().splitlines()))
    assert len(lines) == 8
    assert {line["cost"] for line in lines} == {"1.50"}
    assert all(line["name"].startswith("'=cmd") for line in lines)
    assert sum(int(line["input_tokens"]) + int(line["output_tokens"]) for line in lines) == 80


@pytest.mark.parametrize("group", ["key", "member", "model"])
def test_a_csv_too_long_for_an_answer_is_written_whole_by_a_worker(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    now = timezone.now()
    for number in range(3):
        for days in (0, 2, 5):
            key = make_key(acme, f"key-{number}-{days}", "ada" if number else "dev")
            used(
                key, at=now - timedelta(days=days), model=f"m{number}", requests=1 + days, tokens=8, cost_micros=number
            )
    address = f"/t/acme/usage/?range=30d&group={group}&q=key&zone=UTC&format=csv"
    at_once = client.get(address).content.decode()
    monkeypatch.setattr("dashboard.views.portal.usage.CSV_LIMIT", 2)
    answer = client.get(address)
    export = Export.objects.get()
    assert answer["Location"] == f"/exports/{export.pk}/"
    assert export.table == f"usage-by-{group}"
    used(make_key(acme, "key-late"), at=now + timedelta(minutes=5), model="late", requests=1, tokens=8)
    assert write_next_export() == 1
    file = client.get(f"/exports/{export.pk}/file/").getvalue().decode()
    assert file == at_once
    assert len(file.splitlines()) == 1 + {"key": 9, "member": 6, "model": 9}[group]


def test_an_export_that_is_refused_leads_back_to_the_range_that_was_looked_at(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        used(make_key(acme, f"key-{number}"), at=timezone.now(), model="m", requests=1, tokens=8)
    monkeypatch.setattr("dashboard.views.portal.usage.CSV_LIMIT", 2)
    monkeypatch.setattr("dashboard.services.exports.MOST_OPEN", 0)
    answer = client.get("/t/acme/usage/?range=7d&group=key&format=csv")
    assert answer["Location"] == "/t/acme/usage/?range=7d&group=key"


def test_keys_of_a_tenant_with_very_many_come_after_the_page(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.reads.usage.MANY_KEYS", 1)
    for name in ("one", "two"):
        used(make_key(acme, name), at=timezone.now(), model="m", requests=1, tokens=8)
    page = client.get("/t/acme/usage/?range=7d")
    assert page.context["keys"] == []
    assert page.context["totals"].requests == 2
    later = page.context["keys_at"]
    assert later == "/t/acme/usage/?range=7d&part=keys"
    part = client.get(later, headers={"HX-Request": "true"})
    assert [template.name for template in part.templates][:1] == ["portal/_usage_keys.html"]
    assert [line.key.name for line, _ in part.context["keys"]] == [
        line.key.name for line, _ in client.get(later).context["keys"]
    ]
    assert len(client.get("/t/acme/usage/?range=7d&group=key").context["keys"]) == 2


def test_of_very_many_keys_it_is_kept_which_used_most_and_their_sums_are_new(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.reads.usage.MANY_KEYS", 1)
    monkeypatch.setattr("dashboard.keeping._DEAR_SECONDS", 0)
    one, two, late = make_key(acme, "one", "ada"), make_key(acme, "two", "dev"), make_key(acme, "late", "ada")
    at = timezone.now() - timedelta(hours=2)
    for key in (one, two):
        used(key, at=at, model="m", requests=1, tokens=8)
    query = f"from={at - timedelta(hours=1):%Y-%m-%dT%H:%M}&to={at + timedelta(hours=1):%Y-%m-%dT%H:%M}&zone=UTC"
    assert sums(client, f"{query}&group=key") == {"one": 10, "two": 10}
    assert sums(client, f"{query}&group=member") == {"Ada": 10, "Dev": 10}
    for key in (two, late):
        used(key, at=at, model="m", requests=1, tokens=80)
    assert sums(client, f"{query}&group=key") == {"two": 110, "one": 10, "Other keys": 100}
    assert sums(client, f"{query}&group=member") == {"Ada": 10, "Dev": 10}
    assert "at most 5 minutes old" in client.get(f"/t/acme/usage/?{query}&group=member").content.decode()
    assert sums(client, f"{query}&group=key&q=late") == {"late": 100}  # something else was asked


def test_csv_tells_times_in_the_zone_of_the_page(client: Client, acme: Tenant) -> None:
    used(make_key(acme, "one"), at=timezone.now(), model="m", requests=1, tokens=8)
    for zone, offset in (("Asia/Kolkata", "+05:30"), ("UTC", "+00:00")):
        lines = client.get(f"/t/acme/usage/?format=csv&range=30d&zone={zone}").content.decode().splitlines()
        assert lines[1].split(",")[0].endswith(f"T00:00:00.000{offset}")


def test_the_budgets_month_is_the_tenants_whatever_zone_the_page_is_looked_at_in(client: Client, acme: Tenant) -> None:
    stay_within_a_day(ZoneInfo("Asia/Shanghai"))
    month = f"Budget, {timezone.now().astimezone(ZoneInfo('Asia/Shanghai')):%B}<"
    for zone in ("Asia/Shanghai", "UTC", "America/Los_Angeles"):
        assert month in client.get(f"/t/acme/usage/?zone={zone}").content.decode()


def test_the_time_before_is_as_long_also_where_a_clock_was_changed(acme: Tenant) -> None:
    zone = ZoneInfo("Europe/Berlin")
    first, until = datetime(2026, 10, 25, tzinfo=zone), datetime(2026, 10, 26, tzinfo=zone)  # 25 hours
    key = make_key(acme, "one")
    used(key, at=datetime(2026, 10, 23, 21, 30, tzinfo=UTC), model="m", requests=3, tokens=8)
    used(key, at=datetime(2026, 10, 23, 20, 30, tzinfo=UTC), model="m", requests=50, tokens=8)
    ask = UsageAsk(tenant=acme, starts=[first], until=until, only=Only())
    assert read_usage(ask, other="o", keyless="k", nobody="n").before.requests == 3


@pytest.mark.parametrize("group", ["model", "key", "member"])
def test_queries_do_not_grow_with_what_was_used(
    client: Client, acme: Tenant, group: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    busy(acme, User.objects.get(email="dev@example.com"), days=2)
    for _ in range(2):
        with django_assert_max_num_queries(QUERIES):
            client.get(f"/t/acme/usage/?range=7d&group={group}")
        for number in range(12):
            key = make_key(acme, f"more-{number}", "ada")
            used(key, at=timezone.now(), model=f"m{number}", requests=1, tokens=8)
            create_limit(tenant=acme, key=key, metric="requests", window="day", amount=5, actor=SYSTEM)

"""What is counted for objectives, and how they stand by it."""

import threading
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connections, transaction
from pytest_django import DjangoAssertNumQueries

from gateway.models import Objective, ObjectiveHour, ObjectiveMinute
from gateway.policies.slo import DAY, HOUR, Counted
from gateway.reads.slo import bucket_series, hour_series, minute_series, read_standings
from gateway.services.objective_tallies import NEW_AT_ONCE, tally_objectives
from gateway.services.objectives import change_objective, create_tier_objectives
from tenants.actor import SYSTEM
from tenants.models import Tenant
from tenants.services import create_tenant
from tests.gateway.slo_rows import NOW, refusals, tally, traffic, ttft_objective
from tests.locks import somebody_waits
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def test_slow_first_tokens_spend_the_budget(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(days=30), until=NOW, step=timedelta(minutes=30), requests=100, slow=0)
    traffic(uuid4(), since=NOW - timedelta(hours=1), until=NOW, requests=10, slow=2)
    objective = ttft_objective()
    tally()
    standing = read_standings([objective], now=NOW)[objective.pk]
    assert standing.window == Counted(30 * 48 * 100 + 600, 30 * 48 * 100 + 480)
    assert standing.counts[HOUR] == Counted(600 + 200, 480 + 200)
    assert standing.burns[HOUR] == pytest.approx(120 / 800 / 0.01)
    assert standing.budget.allowed == pytest.approx(0.01 * 144_600)
    assert standing.budget.remaining == pytest.approx(1 - 120 / 1446)
    assert standing.budget.even_pace == pytest.approx(0, abs=0.001)
    assert [one.burning for one in standing.pairs] == [True, True, False]


def test_counting_twice_counts_once(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(hours=5), until=NOW, slow=1)
    objective = ttft_objective()
    tally()
    first = list(ObjectiveHour.objects.values_list("hour", "total", "good", "buckets").order_by("hour"))
    tally()
    tally(NOW + timedelta(hours=1))
    assert list(ObjectiveHour.objects.values_list("hour", "total", "good", "buckets").order_by("hour")) == first
    assert ObjectiveMinute.objects.filter(objective=objective).count() == 300


def test_what_comes_late_is_counted(acme: Tenant) -> None:
    objective = ttft_objective()
    tally()
    traffic(acme, since=NOW - timedelta(minutes=20), until=NOW - timedelta(minutes=10))
    tally(NOW + timedelta(minutes=1))
    assert read_standings([objective], now=NOW)[objective.pk].window.total == 100
    traffic(acme, since=NOW - timedelta(hours=9), until=NOW - timedelta(hours=8))
    tally(NOW + timedelta(minutes=30))
    assert read_standings([objective], now=NOW)[objective.pk].window.total == 100
    tally(NOW + timedelta(hours=1))  # a new hour: what dead processes left is looked for
    assert read_standings([objective], now=NOW)[objective.pk].window.total == 700


def test_a_pause_is_made_good(acme: Tenant) -> None:
    objective = ttft_objective()
    tally(NOW - timedelta(hours=40))
    traffic(acme, since=NOW - timedelta(hours=39), until=NOW - timedelta(hours=38))
    tally()
    assert read_standings([objective], now=NOW)[objective.pk].window.total == 600


@pytest.mark.shows("R136")
def test_availability_counts_our_faults_and_refusals_but_neither_429s_nor_who_left(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(minutes=10), until=NOW, requests=100, faults=1, cancelled=4)
    refusals(NOW - timedelta(minutes=3), 7, tenant=acme)
    refusals(NOW - timedelta(minutes=3), 500, tenant=acme, status=429)
    refusals(NOW - timedelta(minutes=2), 3)
    everyones = ttft_objective(kind="availability", threshold_seconds=None, target=0.999)
    theirs = ttft_objective(kind="availability", threshold_seconds=None, target=0.999, tenant=acme)
    by_tier = [
        ttft_objective(kind="availability", threshold_seconds=None, target=0.999, tier=tier)
        for tier in (acme.sla_tier, "gold")
    ]
    tally()
    standings = read_standings([everyones, theirs, *by_tier], now=NOW)
    assert [standings[one.pk].window for one in by_tier] == [Counted(960 + 7, 950), Counted()]
    assert standings[everyones.pk].window == Counted(960 + 10, 950)
    assert standings[theirs.pk].window == Counted(960 + 7, 950)


def test_each_scope_counts_its_own(acme: Tenant) -> None:
    gold = create_tenant(slug="goldie", name="Goldie", actor=SYSTEM, sla_tier="gold")
    release = uuid4()
    since = NOW - timedelta(minutes=10)
    traffic(acme, since=since, until=NOW, requests=1)
    traffic(gold, since=since, until=NOW, requests=2, version_id=release)
    traffic(gold, since=since, until=NOW, requests=4, model="code-fast")
    objectives = {
        "all": ttft_objective(model=""),
        "model": ttft_objective(),
        "tenant": ttft_objective(model="", tenant=gold),
        "tier": ttft_objective(model="", tier="gold"),
        "release": ttft_objective(version_id=release),
        "tpot": ttft_objective(kind="tpot", threshold_seconds=0.05),
        "queue": ttft_objective(kind="queue_wait", threshold_seconds=0.5, model="code-fast"),
    }
    tally()
    standings = read_standings(list(objectives.values()), now=NOW)
    assert {name: standings[one.pk].window.total for name, one in objectives.items()} == {
        "all": 70, "model": 30, "tenant": 60, "tier": 60, "release": 20, "tpot": 30, "queue": 40,
    }  # fmt: skip


@pytest.mark.shows("U8")
def test_box_and_graph_are_counted_alike(acme: Tenant) -> None:
    now = NOW + timedelta(minutes=25)
    traffic(acme, since=NOW - timedelta(days=4), until=now, step=timedelta(minutes=5), requests=7, slow=1)
    objective = ttft_objective()
    tally(now)
    standing = read_standings([objective], now=now)[objective.pk]
    since, series = hour_series(objective, now=now)
    assert sum(one.total for one in series) == standing.window.total
    assert sum(one.bad for one in series) == standing.budget.bad
    assert len(series) == 30 * 24 + 1
    last = minute_series(objective, since=now - timedelta(hours=6), until=now)
    assert sum(one.total for one in last) == standing.counts[6 * HOUR].total
    heat = bucket_series(objective, since=now - timedelta(hours=6), until=now, step=timedelta(minutes=15))
    assert sum(sum(one) for one in heat if one) == standing.counts[6 * HOUR].total
    assert since == (now - timedelta(days=30)).replace(minute=0)


@pytest.mark.shows("U8")
def test_nothing_is_shown_as_attained_where_there_was_no_traffic() -> None:
    objective = ttft_objective()
    tally()
    standing = read_standings([objective], now=NOW)[objective.pk]
    assert (standing.attained, standing.budget.remaining, standing.burn) == (None, None, None)
    assert standing.exhausted.seconds is None
    assert [one.burning for one in standing.pairs] == [None, None, None]


def test_other_thresholds_are_counted_anew(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(hours=2), until=NOW, slow=5)
    objective = ttft_objective()
    tally()
    changed = change_objective(objective.pk, actor=SYSTEM, now=NOW, threshold_seconds=5.0)
    assert not ObjectiveHour.objects.exists()
    tally()
    assert read_standings([changed], now=NOW)[objective.pk].attained == 1.0


def test_the_longest_burn_rate_looks_at_three_days_also_where_the_window_is_shorter(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(days=4), until=NOW + timedelta(hours=2), step=timedelta(minutes=10), slow=1)
    objective = ttft_objective(window_days=1)
    tally(NOW - timedelta(days=3))
    tally()
    tally(NOW + timedelta(hours=2))  # and after old hours went
    for now in (NOW, NOW + timedelta(hours=2)):
        standing = read_standings([objective], now=now)[objective.pk]
        assert standing.counts[3 * DAY].total == 3 * 24 * 60
    assert standing.window.total == 24 * 60


@pytest.mark.django_db(transaction=True)
def test_a_change_waits_for_the_count_that_is_being_made_and_is_then_counted_anew() -> None:
    traffic(uuid4(), since=NOW - timedelta(hours=2), until=NOW, slow=5)
    objective = ttft_objective()

    def change() -> None:
        try:
            change_objective(objective.pk, actor=SYSTEM, now=NOW, threshold_seconds=5.0)
        finally:
            connections.close_all()

    other = threading.Thread(target=change)
    with transaction.atomic():
        tally()
        other.start()
        wait_until(somebody_waits, "the change to wait for the count")
    other.join(20)
    objective.refresh_from_db()
    assert (objective.threshold_seconds, objective.tallied_at) == (5.0, None)
    tally()
    assert read_standings([objective], now=NOW)[objective.pk].attained == 1.0


@pytest.mark.django_db(transaction=True)
def test_a_count_waits_for_the_change_that_is_being_made_and_counts_by_it() -> None:
    traffic(uuid4(), since=NOW - timedelta(hours=2), until=NOW, slow=5)
    objective = ttft_objective()
    tally()

    def count() -> None:
        try:
            tally()
        finally:
            connections.close_all()

    other = threading.Thread(target=count)
    with transaction.atomic():
        change_objective(objective.pk, actor=SYSTEM, now=NOW, threshold_seconds=5.0)
        other.start()
        wait_until(somebody_waits, "the count to wait for the change")
    other.join(20)
    assert read_standings([objective], now=NOW)[objective.pk].attained == 1.0


@pytest.mark.shows("R146")
def test_every_tier_has_its_thresholds_as_objectives() -> None:
    made = create_tier_objectives(actor=SYSTEM)
    assert create_tier_objectives(actor=SYSTEM) == []
    assert {(one.tier, one.kind): (one.target, one.threshold_seconds) for one in made} == {
        ("gold", "ttft"): (0.99, 1.0), ("gold", "availability"): (0.999, None),
        ("silver", "ttft"): (0.99, 2.5), ("silver", "availability"): (0.995, None),
        ("bronze", "ttft"): (0.99, 10.0), ("bronze", "availability"): (0.99, None),
    }  # fmt: skip
    assert Objective.objects.count() == 6


@pytest.mark.django_db(transaction=True)
def test_the_tiers_objectives_are_made_once_also_where_two_ask_at_the_same_time() -> None:
    made: list[int] = []

    def make() -> None:
        try:
            made.append(len(create_tier_objectives(actor=SYSTEM)))
        finally:
            connections.close_all()

    other = threading.Thread(target=make)
    with transaction.atomic():
        assert len(create_tier_objectives(actor=SYSTEM)) == 6
        other.start()
        wait_until(somebody_waits, "the second to wait for the first")
    other.join(20)
    assert made == [0]


def test_many_objectives_take_three_queries(acme: Tenant, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    traffic(acme, since=NOW - timedelta(hours=2), until=NOW)
    objectives = [ttft_objective(name=f"o{n}") for n in range(12)]
    tally()
    with django_assert_num_queries(3):
        read_standings(objectives, now=NOW)


def test_many_new_objectives_have_their_turn_a_few_at_a_time(acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(minutes=10), until=NOW, requests=1)
    for number in range(NEW_AT_ONCE + 1):
        ttft_objective(name=f"objective {number}")
    assert tally_objectives(now=NOW) == NEW_AT_ONCE
    assert tally_objectives(now=NOW) == NEW_AT_ONCE + 1
    assert not Objective.objects.filter(tallied_at=None).exists()

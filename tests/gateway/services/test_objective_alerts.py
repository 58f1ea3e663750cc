"""Alerts about objectives: opened, told, held back, acknowledged, over."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection
from psycopg.errors import DeadlockDetected
from pytest_django import Settings

from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.reads.slo import new_before, read_standings, silences_over
from gateway.services.objective_alerts import (
    LOCK_NEW,
    acknowledge_alert,
    create_silence,
    end_silence,
    evaluate_objectives,
    is_silenced,
)
from gateway.services.objective_tallies import NEW_AT_ONCE, tally_objectives
from gateway.services.objectives import change_objective
from tenants.actor import SYSTEM, user_actor
from tenants.models import AuditEvent, Delivery, Notice, Tenant, TenantRole, Webhook
from tenants.services import add_member, create_tenant, create_user
from tenants.services.errors import Conflict, InvalidInput
from tests.gateway.slo_rows import NOW, tally, traffic, ttft_objective

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def burn(tenant: Tenant, *, until: datetime = NOW, hours: float = 1, slow: int = 5) -> None:
    traffic(tenant, since=until - timedelta(hours=hours), until=until, slow=slow)


def notices() -> list[tuple[str, str | None]]:
    return [(one.kind, one.tenant.slug if one.tenant else None) for one in Notice.objects.order_by("pk")]


def test_a_burning_objective_is_told_once_however_often_it_is_looked_at(acme: Tenant) -> None:
    burn(acme)
    objective = ttft_objective(tenant=acme)
    assert evaluate_objectives(now=NOW) == 3  # all three pairs burn: half of all requests are slow
    assert evaluate_objectives(now=NOW) == 0
    assert evaluate_objectives(now=NOW + timedelta(seconds=30)) == 0
    assert {one.pair: (one.severity, one.state) for one in objective.alerts.all()} == {
        "1h-5m": ("page", "firing"), "6h-30m": ("page", "firing"), "3d-6h": ("ticket", "firing"),
    }  # fmt: skip
    assert sorted(notices(), key=str) == [("objective_burning", "acme")] * 3 + [("objective_burning", None)] * 3
    assert AuditEvent.objects.filter(action="objective_alert.opened", actor_kind="system").count() == 3


def test_what_a_tenant_set_up_is_told_to_it_alone(acme: Tenant) -> None:
    burn(acme)
    ttft_objective(tenant=acme, tenants_own=True)
    evaluate_objectives(now=NOW)
    assert set(notices()) == {("objective_burning", "acme")}


def test_platform_and_tenant_are_told_by_mail_and_webhook(acme: Tenant, settings: Settings) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, smtp_url="smtp://mail.example.org")
    create_user(email="olga@example.org", password=None, platform_role="operator", actor=SYSTEM)
    ada = create_user(email="ada@example.org", password=None, actor=SYSTEM)
    add_member(acme, ada, role=TenantRole.OWNER, actor=SYSTEM)
    Webhook.objects.create(tenant=acme, url="https://hooks.example.org/acme")
    Webhook.objects.create(tenant=None, url="https://hooks.example.org/ours", events=["objective_burning"])
    burn(acme)
    ttft_objective(tenant=acme)
    evaluate_objectives(now=NOW)
    told = {
        (one.channel, one.user.email if one.user else one.webhook.url if one.webhook else "")
        for one in Delivery.objects.select_related("user", "webhook")
    }
    assert told == {
        ("email", "olga@example.org"),
        ("email", "ada@example.org"),
        ("webhook", "https://hooks.example.org/acme"),
        ("webhook", "https://hooks.example.org/ours"),
    }


def test_an_alert_ends_when_it_was_calm_for_five_minutes_and_that_is_told(acme: Tenant) -> None:
    burn(acme)
    ttft_objective(window_days=1)
    evaluate_objectives(now=NOW)
    pages = ObjectiveAlert.objects.filter(pair="1h-5m")
    traffic(acme, since=NOW, until=NOW + timedelta(minutes=12))
    evaluate_objectives(now=NOW + timedelta(minutes=6))
    assert pages.get().calm_since is not None
    evaluate_objectives(now=NOW + timedelta(minutes=10))
    assert pages.get().state == "firing"
    evaluate_objectives(now=NOW + timedelta(minutes=11, seconds=1))
    assert pages.get().state == "resolved"
    assert Notice.objects.filter(kind="objective_recovered").count() == 1


def test_unanswered_pages_are_told_again_and_acknowledged_ones_are_not(acme: Tenant) -> None:
    burn(acme, until=NOW + timedelta(hours=3), hours=4)
    ttft_objective()
    evaluate_objectives(now=NOW)
    assert evaluate_objectives(now=NOW + timedelta(minutes=61)) == 2  # both pages; the ticket not within a day
    olga = create_user(email="olga@example.org", password=None, platform_role="operator", actor=SYSTEM)
    for alert in ObjectiveAlert.objects.all():
        acknowledge_alert(alert.pk, actor=user_actor(olga.pk, request_id=""), now=NOW + timedelta(minutes=70))
    assert evaluate_objectives(now=NOW + timedelta(minutes=150)) == 0
    assert {one.acknowledged_by for one in ObjectiveAlert.objects.all()} == {olga}
    with pytest.raises(Conflict, match="acknowledged already"):
        acknowledge_alert(alert.pk, actor=SYSTEM, now=NOW)


def test_a_silence_holds_back_and_what_still_burns_is_told_after_it(acme: Tenant) -> None:
    burn(acme, until=NOW + timedelta(hours=1), hours=2)
    objective = ttft_objective()
    silence = create_silence(
        objective=objective, ends_at=NOW + timedelta(hours=2), reason="load test", actor=SYSTEM, now=NOW
    )
    assert evaluate_objectives(now=NOW) == 0
    assert ObjectiveAlert.objects.filter(state="firing", told_at=None).count() == 3
    end_silence(silence.pk, actor=SYSTEM, now=NOW + timedelta(minutes=1))
    assert evaluate_objectives(now=NOW + timedelta(minutes=2)) == 3
    with pytest.raises(Conflict):
        end_silence(silence.pk, actor=SYSTEM, now=NOW + timedelta(minutes=3))


def test_what_was_told_before_a_silence_is_told_again_after_it(acme: Tenant) -> None:
    burn(acme, until=NOW + timedelta(hours=1), hours=2)
    ttft_objective()
    assert evaluate_objectives(now=NOW) == 3
    create_silence(ends_at=NOW + timedelta(minutes=5), reason="x", actor=SYSTEM, now=NOW + timedelta(minutes=1))
    assert evaluate_objectives(now=NOW + timedelta(minutes=2)) == 0
    assert evaluate_objectives(now=NOW + timedelta(minutes=6)) == 3
    assert evaluate_objectives(now=NOW + timedelta(minutes=7)) == 0
    assert set(ObjectiveAlert.objects.values_list("told", flat=True)) == {2}
    assert Notice.objects.count() == 6


def test_silences_are_of_whoever_set_the_objective_up(acme: Tenant) -> None:
    ours = ttft_objective(tenant=acme)
    theirs = ttft_objective(tenant=acme, tenants_own=True)
    until = NOW + timedelta(hours=1)
    with pytest.raises(InvalidInput):
        create_silence(objective=ours, tenant=acme, ends_at=until, reason="x", actor=SYSTEM, now=NOW)
    with pytest.raises(InvalidInput):
        create_silence(objective=theirs, ends_at=until, reason="x", actor=SYSTEM, now=NOW)
    burn(acme)
    create_silence(tenant=acme, ends_at=until, reason="ours is quiet", actor=SYSTEM, now=NOW)
    evaluate_objectives(now=NOW)
    assert {one.objective_id for one in ObjectiveAlert.objects.exclude(told_at=None)} == {ours.pk}


@pytest.mark.parametrize(
    ("values", "field"),
    [({"reason": " "}, "reason"), ({"ends_at": NOW}, "ends_at"), ({"ends_at": NOW + timedelta(days=31)}, "ends_at")],
)
def test_a_silence_says_why_and_ends(values: dict[str, object], field: str) -> None:
    told: dict[str, object] = {"reason": "x", "ends_at": NOW + timedelta(hours=1), "actor": SYSTEM, "now": NOW}
    with pytest.raises(InvalidInput) as refused:
        create_silence(**(told | values))  # type: ignore[arg-type]  # each case breaks one
    assert refused.value.field == field
    assert not Silence.objects.exists()


def test_a_silence_lasts_thirty_days_at_most() -> None:
    silence = create_silence(reason="x", ends_at=NOW + timedelta(days=30), actor=SYSTEM, now=NOW)
    assert silence.ends_at == NOW + timedelta(days=30)


def test_what_is_shown_over_an_objective_is_what_holds_its_alerts_back(acme: Tenant) -> None:
    other = create_tenant(slug="other", name="Other", actor=SYSTEM)
    objectives = [
        ttft_objective(),
        ttft_objective(tenant=acme),
        ttft_objective(tenant=acme, tenants_own=True),
        ttft_objective(tenant=other, tenants_own=True),
    ]
    until = NOW + timedelta(hours=1)
    told: list[dict[str, Any]] = [
        {}, {"tenant": acme}, {"objective": objectives[0]}, {"objective": objectives[2], "tenant": acme},
    ]  # fmt: skip
    silences = [create_silence(**scope, ends_at=until, reason="x", actor=SYSTEM, now=NOW) for scope in told]
    for objective in objectives:
        shown = {one.pk for one in silences_over(objective, now=NOW)}
        assert shown == {one.pk for one in silences if is_silenced(objective, [one])}
    assert [silences_over(one, now=NOW).count() for one in objectives] == [2, 1, 2, 0]
    assert not silences_over(objectives[0], now=until).exists()


def test_without_traffic_nothing_begins_and_nothing_ends(acme: Tenant) -> None:
    ttft_objective()
    assert evaluate_objectives(now=NOW) == 0
    assert not ObjectiveAlert.objects.exists()
    burn(acme, until=NOW)
    evaluate_objectives(now=NOW)
    evaluate_objectives(now=NOW + timedelta(days=4))  # nobody asked anything since
    assert ObjectiveAlert.objects.filter(state="firing").count() == 3


def test_one_that_takes_too_long_is_late_and_the_others_are_not(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    burn(acme)
    slow, *others = [ttft_objective(name=f"objective {number}") for number in range(NEW_AT_ONCE)]
    tally()
    monkeypatch.setattr("gateway.services.objective_alerts.AT_ONCE", 2)
    counted: list[UUID] = []

    def count(*, now: datetime, among: Sequence[UUID]) -> int:
        counted.extend(among)
        if slow.pk in among:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)")
        return len(among)

    with monkeypatch.context() as patched:
        patched.setattr("gateway.services.objective_alerts.tally_objectives", count)
        with pytest.raises(OperationalError, match="statement timeout"):
            evaluate_objectives(now=NOW)
    assert sorted(counted) == sorted([slow.pk, *(one.pk for one in others)])
    told = set(ObjectiveAlert.objects.values_list("objective_id", flat=True))
    assert told == {one.pk for one in others[1:]}  # the first of them was looked at together with the slow one
    assert evaluate_objectives(now=NOW) == 2 * 3


def test_who_waited_the_longest_has_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [ttft_objective(name=f"objective {number}").pk for number in range(3)]
    for pk, minutes in zip(known, (1, 3, 2), strict=True):
        Objective.objects.filter(pk=pk).update(tallied_at=NOW - timedelta(minutes=minutes))
    new = [ttft_objective(name=f"new {number}").pk for number in range(NEW_AT_ONCE + 1)]
    turns: list[list[UUID]] = []

    def count(*, now: datetime, among: Sequence[UUID]) -> int:
        turns.append(list(among))
        return len(among)

    monkeypatch.setattr("gateway.services.objective_alerts.tally_objectives", count)
    monkeypatch.setattr("gateway.services.objective_alerts.AT_ONCE", 2)
    evaluate_objectives(now=NOW)
    assert turns == [[known[1], known[2]], [known[0]], *([pk] for pk in new[:NEW_AT_ONCE])]


def test_known_ones_have_their_turn_while_an_earlier_look_counts_new_ones(acme: Tenant) -> None:
    burn(acme)
    known = ttft_objective(name="known")
    tally()
    new = ttft_objective(name="new")
    earlier = connection.copy()
    try:
        with earlier.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK_NEW])
        assert evaluate_objectives(now=NOW + timedelta(seconds=30)) == 3
    finally:
        earlier.close()
    assert set(ObjectiveAlert.objects.values_list("objective_id", flat=True)) == {known.pk}
    new.refresh_from_db()
    assert new.tallied_at is None


def test_new_ones_that_take_too_long_keep_no_other_new_one_waiting(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    burn(acme)
    slow = {ttft_objective(name=f"slow {number}").pk for number in range(NEW_AT_ONCE)}
    quick = ttft_objective(name="quick")

    def count(*, now: datetime, among: Sequence[UUID]) -> int:
        if slow & set(among):
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)")
        return tally_objectives(now=now, among=among)

    assert [new_before(one) for one in Objective.objects.order_by("pk")] == [0, 1, 2, 3, 4]
    monkeypatch.setattr("gateway.services.objective_alerts.tally_objectives", count)
    with pytest.raises(OperationalError, match="statement timeout"):
        evaluate_objectives(now=NOW)
    evaluate_objectives(now=NOW + timedelta(minutes=1))
    quick.refresh_from_db()
    assert quick.tallied_at == NOW + timedelta(minutes=1)
    with pytest.raises(OperationalError, match="statement timeout"):
        evaluate_objectives(now=NOW + timedelta(minutes=2))
    quick.refresh_from_db()
    assert quick.tallied_at == NOW + timedelta(minutes=2)
    failed = dict(Objective.objects.filter(pk__in=slow).values_list("pk", "count_failed_at"))
    # No other new one waits: they are tried again, one in a look.
    assert [failed[pk] for pk in sorted(slow)] == [NOW + timedelta(minutes=2)] + [NOW] * (NEW_AT_ONCE - 1)
    one = change_objective(min(slow), actor=SYSTEM, now=NOW, model="code-fast")
    assert (one.count_failed_at, new_before(one), new_before(quick)) == (None, 0, None)


def test_only_what_took_too_long_is_said_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = ttft_objective()

    def count(*, now: datetime, among: Sequence[UUID]) -> int:
        raise OperationalError from DeadlockDetected("deadlock detected")

    monkeypatch.setattr("gateway.services.objective_alerts.tally_objectives", count)
    with pytest.raises(OperationalError):
        evaluate_objectives(now=NOW)
    objective.refresh_from_db()
    assert objective.count_failed_at is None


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"threshold_seconds": 0.7}, "threshold_seconds", "0.6 s or 0.75 s"),
        ({"threshold_seconds": 100.0}, "threshold_seconds", "60 s"),
        ({"threshold_seconds": None}, "threshold_seconds", "within how many seconds"),
        ({"kind": "availability"}, "threshold_seconds", "no threshold"),
        ({"kind": "speed"}, "kind", "availability"),
        ({"target": 1.0}, "target", "0.99"),
        ({"window_days": 0}, "window_days", "90"),
        ({"name": "  "}, "name", "name"),
        ({"tier": "lead"}, "tier", "gold"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(values: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ttft_objective(**values)
    assert refused.value.field == field
    assert says in refused.value.message


@pytest.mark.parametrize("slow", [74_998, 75_002])
def test_a_hair_that_is_left_of_a_budget_is_not_kept_as_nothing(acme: Tenant, slow: int) -> None:
    """Lists say by its sign what is spent, and rows by the exact figure."""
    begun = NOW - timedelta(days=4)
    traffic(acme, since=begun, until=begun + timedelta(minutes=1), requests=1_000_000, slow=slow)
    objective = ttft_objective()
    evaluate_objectives(now=NOW)
    left = read_standings([objective], now=NOW)[objective.pk].budget.remaining
    objective.refresh_from_db()
    assert left is not None
    assert 0 < abs(left) < 0.00005
    assert (left > 0) == (slow < 75_000)
    assert objective.budget_remaining == pytest.approx(left)

"""The channel `slo`: what changed is in the next frame, and a round in which nothing was counted reads no tallies."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.live.feeds.slo import SloFeed
from gateway.models import Objective, ObjectiveAlert, ObjectiveMinute
from gateway.reads.slo import read_standings
from gateway.services.objective_alerts import acknowledge_alert, create_silence, end_silence, evaluate_objectives
from gateway.services.objectives import change_objective, delete_objective
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole
from tests.dashboard.people import tenant
from tests.gateway.slo_rows import NOW, traffic, ttft_objective

pytestmark = pytest.mark.django_db
LOOK = NOW + timedelta(seconds=5)
QUIET, WHOLE = 3, 5
"""Queries of a round in which nothing was counted, and of one that reads tallies."""


class Watched:
    """A feed, its frames, and how many queries the last one took."""

    def __init__(self) -> None:
        self._feed, self.queries = SloFeed(), 0

    def read(self, scope: str = "", *, seconds: float = 0) -> list[dict[str, Any]]:
        with CaptureQueriesContext(connection) as queries:
            state = self._feed.read(scope, now=LOOK + timedelta(seconds=seconds))
        assert isinstance(state, dict)
        self.queries = len(queries)
        rows: list[dict[str, Any]] = state["objectives"]
        return rows

    @property
    def remembers(self) -> set[str]:
        """Scopes."""
        return set(self._feed._kept)

    def one(self, scope: str = "", *, seconds: float = 0) -> dict[str, Any]:
        (row,) = self.read(scope, seconds=seconds)
        return row


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER)


@pytest.fixture
def objective(acme: Tenant) -> Objective:
    """Counted until LOOK, and burning."""
    traffic(acme, since=NOW - timedelta(hours=2), until=NOW, slow=5)
    made = ttft_objective(tenant=acme)
    evaluate_objectives(now=LOOK)
    return made


@pytest.fixture
def watched(objective: Objective) -> Watched:
    made = Watched()
    assert made.one()["attained"] == 0.5
    assert made.queries == WHOLE
    return made


def test_a_round_in_which_nothing_was_counted_reads_no_tallies(watched: Watched) -> None:
    before = watched.one(seconds=5)
    assert watched.queries == QUIET
    assert watched.one(seconds=54) == before
    assert watched.queries == QUIET
    watched.one(seconds=55)  # a minute has ended: windows have moved
    assert watched.queries == WHOLE


def test_what_a_look_counted_is_in_the_next_frame(watched: Watched, acme: Tenant) -> None:
    traffic(acme, since=NOW - timedelta(minutes=3), until=NOW - timedelta(minutes=2), requests=120)  # they took long
    assert watched.one(seconds=5)["attained"] == 0.5
    evaluate_objectives(now=LOOK + timedelta(seconds=10))
    assert watched.one(seconds=10)["attained"] == pytest.approx(720 / 1320)
    assert watched.queries == WHOLE


def test_what_is_counted_while_a_round_reads_is_in_the_next(
    acme: Tenant, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()

    def slowly(*args: Any, **told: Any) -> Any:
        found = read_standings(*args, **told)
        evaluate_objectives(now=LOOK + timedelta(seconds=1))
        return found

    monkeypatch.setattr("dashboard.live.feeds.slo.read_standings", slowly)
    traffic(acme, since=NOW - timedelta(minutes=3), until=NOW - timedelta(minutes=2), requests=120)
    assert watched.one()["attained"] == 0.5
    monkeypatch.undo()
    assert watched.one(seconds=5)["attained"] > 0.5


def test_what_is_counted_first_while_a_round_reads_is_gone_with_the_next_change(
    acme: Tenant, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, threshold_seconds=1.5)  # counted anew at the next look

    def after_a_look(*args: Any, **told: Any) -> Any:
        evaluate_objectives(now=LOOK + timedelta(seconds=1))
        return read_standings(*args, **told)

    monkeypatch.setattr("dashboard.live.feeds.slo.read_standings", after_a_look)
    assert watched.one()["attained"] is not None
    monkeypatch.undo()
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, threshold_seconds=2.0)
    assert watched.one(seconds=5)["attained"] is None
    assert watched.one(seconds=10)["attained"] is None
    assert watched.queries == QUIET


def test_alerts_silences_and_the_objectives_own_changes_wait_for_no_count(
    watched: Watched, objective: Objective
) -> None:
    alert = ObjectiveAlert.objects.get(pair="1h-5m")
    assert [alert.pair, "firing"] in watched.one()["alerts"]
    acknowledge_alert(alert.pk, actor=SYSTEM, now=LOOK)
    assert [alert.pair, "acknowledged"] in watched.one()["alerts"]
    silence = create_silence(
        starts_at=LOOK + timedelta(seconds=10), ends_at=LOOK + timedelta(seconds=20), reason="load test",
        actor=SYSTEM, now=LOOK,
    )  # fmt: skip
    silenced = [watched.one(seconds=seconds)["silenced"] for seconds in (9, 10, 19, 20)]
    assert silenced == [False, True, True, False]  # begun and ended by time alone
    end_silence(silence.pk, actor=SYSTEM, now=LOOK + timedelta(seconds=15))
    assert not watched.one(seconds=15)["silenced"]
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, name="another name")
    assert watched.one()["name"] == "another name"
    assert watched.queries == QUIET
    spent = 1 - watched.one()["remaining"]
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, target=0.6)
    assert 1 - watched.one()["remaining"] == pytest.approx(spent / 40)
    assert watched.queries == WHOLE
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, enabled=False)
    assert watched.one()["state"] == "off"
    assert watched.queries == QUIET
    change_objective(objective.pk, actor=SYSTEM, now=LOOK, enabled=True)  # counted anew at the next look
    found = watched.one()
    assert (found["state"], found["attained"]) == ("counting", None)
    assert not ObjectiveMinute.objects.exists()
    delete_objective(objective.pk, actor=SYSTEM, now=LOOK)
    assert watched.read() == []


def test_scopes_are_remembered_apart_and_until_the_minute_ends(watched: Watched, acme: Tenant) -> None:
    others = [tenant(f"other-{n}", **{f"olaf{n}": TenantRole.OWNER}) for n in range(3)]
    for one in others:
        ttft_objective(tenant=one, name="of the other", tenants_own=True)
    scopes = ["tenant:acme", *(f"tenant:{one.slug}" for one in others)]
    assert [watched.one(scope)["attained"] for scope in scopes] == [0.5, None, None, None]
    for scope in (*scopes, *scopes):
        watched.one(scope)
        assert watched.queries == QUIET + 1
    assert watched.remembers == {"", *scopes}
    watched.one("tenant:acme", seconds=55)
    assert watched.remembers == {"tenant:acme"}  # nobody else watches

"""The control API of circuit breakers: what relays tell, what they do not name, and who may look."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings
from rest_framework.test import APIClient

from gateway.api import breakers
from gateway.policies.breaker import Opened
from gateway.reads import breakers as reads
from gateway.relay.breaker_board import LeftAlone
from tests.dashboard.people import person
from tests.gateway import breaker_words

pytestmark = pytest.mark.django_db
ADDRESS = "/api/breakers/"
ONE, OTHER = UUID(int=1), UUID(int=2)
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def tell(valkey_url: str) -> Any:
    """Writes what a relay process leaves alone."""
    return partial(breaker_words.tell, valkey_url)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> APIClient:
    """It is NOW there, however long ago this file was read."""
    monkeypatch.setattr(breakers, "timezone", SimpleNamespace(now=lambda: NOW))
    breaker_words.patient(monkeypatch)
    client = APIClient()
    client.force_authenticate(person("rita", platform_role="read_only"))
    return client


def left_alone(
    instance_id: UUID = ONE, *, minutes: float = 5, why: Opened = Opened.REFUSED, trial_in: float | None = 20
) -> LeftAlone:
    """Since so many minutes; its trial is due in so many seconds, or under way."""
    due = NOW + timedelta(seconds=trial_in or 0)
    since = NOW - timedelta(minutes=minutes)
    trial_at = None if trial_in is None else due.timestamp()
    return LeftAlone(instance_id, since.timestamp(), why, trial_at, due.timestamp())


def test_what_relays_leave_alone_is_told_the_longest_first(api: APIClient, tell: Any) -> None:
    tell("relay a:1", left_alone(minutes=1), left_alone(OTHER, minutes=9, why=Opened.FAILED, trial_in=-240))
    tell("relay b:2", left_alone(minutes=3, why=Opened.TRIAL, trial_in=None))
    told = api.get(ADDRESS).json()
    assert (told["known"], told["more"], told["unread_processes"]) == (True, 0, 0)
    assert [(one["process"], one["state"], one["why"], one["unasked"]) for one in told["breakers"]] == [
        ("relay a:1", "open", "failed", True),
        ("relay b:2", "half_open", "trial", False),
        ("relay a:1", "open", "refused", False),
    ]
    last = told["breakers"][-1]
    moments = [datetime.fromisoformat(last[name]) for name in ("since", "trial_at", "open_until")]
    assert moments == [NOW - timedelta(minutes=1), *[NOW + timedelta(seconds=20)] * 2]
    assert told["breakers"][1]["trial_at"] is None
    of_one = api.get(ADDRESS, {"instance": str(OTHER)}).json()["breakers"]
    assert [one["instance_id"] for one in of_one] == [str(OTHER)]
    assert api.get(ADDRESS, {"instance": "x"}).status_code == 400


def test_what_is_not_listed_is_counted(api: APIClient, tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakers, "MOST_LISTED", 2)
    tell("relay a:1", *(left_alone(UUID(int=n)) for n in range(1, 4)), more=37)
    tell("relay b:2", left_alone(), more=2)
    told = api.get(ADDRESS).json()
    assert (len(told["breakers"]), told["more"]) == (2, 4 - 2 + 37 + 2)
    told = api.get(ADDRESS, {"instance": str(OTHER)}).json()  # those that are not named may be any
    assert (len(told["breakers"]), told["more"]) == (1, 37 + 2)
    monkeypatch.setattr(reads, "_MOST_PROCESSES", 1)
    tell("relay c:3", left_alone(OTHER), told_at=2)
    told = api.get(ADDRESS).json()
    assert ([one["process"] for one in told["breakers"]], told["unread_processes"]) == (["relay c:3"], 2)


def test_valkey_that_cannot_be_asked_is_no_empty_list(api: APIClient, tell: Any, settings: Settings) -> None:
    tell("relay a:1", left_alone())
    for url in ("", "redis://127.0.0.1:1/0"):
        settings.GATEHOUSE = replace(settings.GATEHOUSE, valkey_state_url=url)
        told = api.get(ADDRESS).json()
        assert (told["known"], told["breakers"]) == (False, [])


def test_it_is_for_whoever_may_look_at_the_pool(api: APIClient) -> None:
    assert api.get(ADDRESS).status_code == 200
    api.force_authenticate(person("nobody"))
    assert api.get(ADDRESS).status_code == 403
    assert APIClient().get(ADDRESS).status_code == 401

"""`GET /v1/usage` at both doors, as real processes: a key's own use, and its limits as they stand."""

import json
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction

from bench.house import wait_until
from bench.rows import Key
from core.epochs import Section, bump_epoch
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Tenant
from tenants.services.issuers import create_token_issuer
from tenants.services.keys import create_api_key
from tenants.services.limits import create_limit
from tests.doubles.issuer import AUDIENCE, TokenMaker
from tests.gateway.test_database_away import database_away
from tests.gateway.two_doors import Ask, Doors, chat, comparable
from tests.gateway.two_doors import doors as doors
from tests.gateway.two_doors import house_more as house_more
from tests.waiting import stay_within_a_day

USAGE: Final = "/v1/usage"

REFUSED: Final = (
    Ask("no key", USAGE, "GET", key="", status=401),
    Ask("a revoked key", USAGE, "GET", key="revoked", status=401),
    Ask("the wrong method", USAGE, "POST", body=b"{}", status=405),
    Ask("an unknown parameter", f"{USAGE}?from=2026-01-01", "GET", status=400),
    Ask("a parameter twice", f"{USAGE}?start=1&start=2", "GET", status=400),
    Ask("an unknown grouping", f"{USAGE}?by=week", "GET", status=400),
    Ask("no time", f"{USAGE}?start=yesterday", "GET", status=400),
    Ask("a day that is none", f"{USAGE}?start=2026-02-30", "GET", status=400),
    Ask("an absurd time", f"{USAGE}?start=99999999999", "GET", status=400),
    Ask("an end before the start", f"{USAGE}?start=2026-02-02&end=2026-02-01", "GET", status=400),
    Ask("a year", f"{USAGE}?start=2025-01-01&end=2026-01-01", "GET", status=400),
)


@pytest.mark.parametrize("ask", REFUSED, ids=lambda ask: ask.name)
def test_both_doors_refuse_alike(doors: Doors, ask: Ask) -> None:
    relay, web = doors.send("relay", ask), doors.send("web", ask)
    assert relay.status_code == ask.status, relay.text
    assert comparable(web) == comparable(relay)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
def test_both_doors_answer_other_methods_alike(doors: Doors, method: str) -> None:
    ask = Ask(method, USAGE, method)
    assert comparable(doors.send("web", ask)) == comparable(doors.send("relay", ask))


@pytest.fixture(scope="module")
def used(doors: Doors) -> tuple[Key, dict[str, Any]]:
    """A key that made two requests, with limits of every window; and what the relay told of it."""
    stay_within_a_day()
    house = doors.house
    key = house.new_key("counted")
    row = ApiKey.objects.get(pk=key.id)
    for metric, window, amount in (
        ("requests", "minute", 100),
        ("tokens", "month", 100_000),
        ("requests", "day", 50),
        ("concurrency", "standing", 4),
    ):
        create_limit(metric=metric, window=window, amount=amount, tenant=house.tenant, key=row, actor=SYSTEM)
    create_limit(metric="tokens", window="bucket", amount=5000, refill_per_second=10, tenant=house.tenant, actor=SYSTEM)
    create_limit(metric="requests", window="day", amount=10_000, actor=SYSTEM)  # the platform's: nobody's business
    for door in ("relay", "web"):
        answer = doors.send(door, Ask("x", body=chat(), key=key.secret))
        assert answer.status_code == 200, answer.text
        house.ledger_row(answer.headers["x-request-id"])
    return key, doors.send("relay", Ask("x", USAGE, "GET", key=key.secret)).json()


def test_a_key_is_told_what_it_used_itself(doors: Doors, used: tuple[Key, dict[str, Any]]) -> None:
    _, told = used
    today = datetime.now(ZoneInfo("UTC")).date().isoformat()
    (row,) = told["data"]
    assert (row["day"], row["model"], row["requests"], row["failures"]) == (today, "tiny", 2, 0)
    assert row["input_tokens"] > 0
    assert row["output_tokens"] == 8
    assert told["total"]["requests"] == 2
    assert datetime.fromisoformat(told["start"]).day == 1
    assert told["time_zone"] == "UTC"
    assert doors.send("relay", Ask("x", USAGE, "GET", key=doors.house.new_key("idle").secret)).json()["data"] == []


def limits_of(doors: Doors, key: Key) -> dict[tuple[str, str, str], dict[str, Any]]:
    """By scope, metric and window."""
    limits = doors.send("relay", Ask("x", USAGE, "GET", key=key.secret)).json()["limits"]
    return {(limit["scope"], limit["metric"], limit["window"]): limit for limit in limits}


def settled(doors: Doors, key: Key) -> bool:
    """Whether the key's two requests are used of its limits, and nothing is reserved."""
    limits = limits_of(doors, key)
    day, month = limits["key", "requests", "day"], limits["key", "tokens", "month"]
    return bool(day["used"] == 2 and day["reserved"] == month["reserved"] == 0)


@pytest.mark.parametrize("query", ["", "?by=day", "?by=model", "?by=day,model&start={month}-01T00:00:00%2B01:00"])
def test_both_doors_tell_the_same(doors: Doors, used: tuple[Key, dict[str, Any]], query: str) -> None:
    wait_until(lambda: settled(doors, used[0]), "the processes' reports")
    now = datetime.now(UTC)
    path = f"{USAGE}{query.format(month=f'{now:%Y-%m}')}{'&' if query else '?'}end={int(now.timestamp()) + 60}"
    relay, web = (doors.send(door, Ask("x", path, "GET", key=used[0].secret)) for door in ("relay", "web"))
    assert relay.status_code == 200, relay.text

    def steady(body: bytes) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(body)
        for limit in told["limits"]:
            limit.pop("reset_seconds")  # goes on between the two
            if limit["window"] in ("bucket", "minute"):
                limit.pop("used"), limit.pop("remaining")
        return told

    assert steady(web.content) == steady(relay.content)
    assert list(web.json()) == list(relay.json())


def test_a_key_is_told_how_its_limits_stand(doors: Doors, used: tuple[Key, dict[str, Any]]) -> None:
    key, _ = used
    wait_until(lambda: settled(doors, key), "the processes' reports")
    found = limits_of(doors, key)
    assert set(found) == {
        ("key", "requests", "minute"),
        ("key", "requests", "day"),
        ("key", "tokens", "month"),
        ("key", "concurrency", "standing"),
        ("tenant", "tokens", "bucket"),
    }
    day = found["key", "requests", "day"]
    assert (day["limit"], day["remaining"]) == (50, 48)
    assert 0 < day["reset_seconds"] <= 90_000
    month = found["key", "tokens", "month"]
    assert month["used"] + month["remaining"] == 100_000
    assert month["used"] > 8
    minute = found["key", "requests", "minute"]
    assert minute["used"] in (0, 1, 2)
    assert found["key", "concurrency", "standing"]["remaining"] == 4


def test_a_key_without_scope_of_inference_may_ask(doors: Doors) -> None:
    key = create_api_key(doors.house.tenant, name="embeds", scopes=["embed"], actor=SYSTEM).secret
    for door in ("relay", "web"):
        assert doors.send(door, Ask("x", USAGE, "GET", key=key)).status_code == 200


def test_a_tokens_subject_is_told_what_it_used_itself(doors: Doors) -> None:
    maker = TokenMaker("https://usage.example")
    create_token_issuer(
        name="Usage", issuer=maker.issuer, audiences=[AUDIENCE], pinned_jwks=maker.key_set(), actor=SYSTEM
    )
    mine, other = (maker.token(tid="acme", sub=subject) for subject in ("mine", "other"))
    sent = Ask("x", body=chat(), key=mine)
    wait_until(lambda: doors.send("relay", Ask("x", USAGE, "GET", key=mine)).status_code == 200, "belief")
    for door in ("relay", "web"):
        doors.house.ledger_row(doors.send(door, sent).headers["x-request-id"])
    for door in ("relay", "web"):
        (row,) = doors.send(door, Ask("x", f"{USAGE}?by=model", "GET", key=mine)).json()["data"]
        assert (row["model"], row["requests"]) == ("tiny", 2)
        assert doors.send(door, Ask("x", USAGE, "GET", key=other)).json()["data"] == []


def test_days_are_those_of_the_tenants_zone(doors: Doors, used: tuple[Key, dict[str, Any]]) -> None:
    zone = "Pacific/Kiritimati"
    with transaction.atomic():
        Tenant.objects.filter(pk=doors.house.tenant.pk).update(time_zone=zone)
        bump_epoch(Section.GRANTS, doors.house.tenant.pk)
    month = f"{datetime.now(ZoneInfo(zone)):%Y-%m}"
    ask = Ask("x", f"{USAGE}?start={month}-01", "GET", key=used[0].secret)
    wait_until(lambda: doors.send("relay", ask).json()["time_zone"] == zone, "the zone")
    told = doors.send("relay", ask).json()
    assert told["start"] == f"{month}-01T00:00:00+14:00"


def test_a_database_that_is_away_is_told_and_does_not_hold_the_relay(doors: Doors) -> None:
    with database_away():
        for door in ("relay", "web"):
            refused = doors.send(door, Ask("x", USAGE, "GET"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "usage_unavailable")
            assert refused.headers["retry-after"]

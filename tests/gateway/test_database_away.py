"""PostgreSQL goes away under running doors: what is served from the snapshot, for how long, and what comes after."""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from bench.house import wait_until
from tenants.actor import SYSTEM
from tenants.models import ApiKey
from tenants.services.limits import create_limit, delete_limit
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
BODY: Final[dict[str, Any]] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
STALE_SECONDS: Final = 10
STALL_SECONDS: Final = 4
"""For so long a busy machine may have looked away before, or look away in between."""


@contextlib.contextmanager
def database_away() -> Iterator[None]:
    """Nobody is connected to the house's database, and nobody can connect."""
    name = str(connection.settings_dict["NAME"])
    connection.close()
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))


@contextlib.contextmanager
def no_more_connections() -> Iterator[None]:
    """Who is connected stays so, and nobody else comes in."""
    name = str(connection.settings_dict["NAME"])
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))


def connections() -> int:
    """Connections to the house's database, this test's own aside."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {"GATEHOUSE_SNAPSHOT_STALE_SECONDS": str(STALE_SECONDS)}


@pytest.fixture(scope="module")
def both(house: TestHouse) -> TestHouse:
    house.start("web")
    return house


@pytest.mark.shows("G30")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_known_keys_are_served_for_the_stated_time_and_then_503(both: TestHouse, door: str) -> None:
    stranger = both.new_key(f"never seen at the {door}")
    with both.client(door=door) as client, both.client(stranger.secret, door=door) as unseen:
        assert client.post(CHAT, json=BODY).status_code == 200
        began = time.monotonic()
        with database_away():
            request_ids = []
            while time.monotonic() < began + STALE_SECONDS - STALL_SECONDS:
                answer = client.post(CHAT, json=BODY)
                assert answer.status_code == 200
                request_ids.append(answer.headers["x-request-id"])
            refused = unseen.post(CHAT, json=BODY)  # nobody can say who that is
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "configuration_unavailable")
            assert refused.headers["retry-after"]
            assert client.get("/readyz").status_code == 200
            wait_until(lambda: client.post(CHAT, json=BODY).status_code == 503, "too old to serve")
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
        wait_until(lambda: client.post(CHAT, json=BODY).status_code == 200, "served again")
        assert unseen.post(CHAT, json=BODY).status_code == 200
    for request_id in request_ids:
        both.ledger_row(request_id)


@pytest.mark.shows("G30")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_limits_hold_while_the_database_is_away(both: TestHouse, door: str) -> None:
    """They count in Valkey: as many are served as may be, the next are refused, and what has no limit is served."""
    near, far = both.new_key(f"near at the {door}", rpm_limit=4), both.new_key(f"far at the {door}")
    amount = 10_000_000
    budget = create_limit(
        tenant=both.tenant, key=ApiKey.objects.get(pk=far.id), metric="tokens", window="day", amount=amount,
        actor=SYSTEM,
    )  # fmt: skip
    with (
        both.client(door=door) as free,
        both.client(near.secret, door=door) as nearly,
        both.client(far.secret, door=door) as budgeted,
    ):
        wait_until(
            lambda: budgeted.post(CHAT, json=BODY).headers.get("x-ratelimit-limit-tokens") == str(amount), "the limit"
        )
        known = [client.post(CHAT, json=BODY).status_code for client in (nearly, free)]
        assert known == [200, 200]
        with database_away():
            began = time.monotonic()
            statuses = [nearly.post(CHAT, json=BODY).status_code for _ in range(6)]
            answers = [client.post(CHAT, json=BODY) for client in (budgeted, free)]
            assert time.monotonic() - began < STALE_SECONDS
            assert statuses == [200] * 3 + [429] * 3
            assert [answer.status_code for answer in answers] == [200, 200]
            wait_until(lambda: budgeted.post(CHAT, json=BODY).status_code == 503, "too old to serve")
            for client in (budgeted, nearly, free):
                refused = client.post(CHAT, json=BODY)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "configuration_unavailable")
                assert refused.headers["retry-after"]
        wait_until(lambda: budgeted.post(CHAT, json=BODY).status_code == 200, "served again")
    for answer in answers:
        both.ledger_row(answer.headers["x-request-id"])
    delete_limit(budget.pk, actor=SYSTEM)


@pytest.mark.shows("G30")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_a_database_without_room_for_another_connection_stops_nobody_who_is_known(both: TestHouse, door: str) -> None:
    """Connections that are there stay; no other can be made, as with a pool that is exhausted."""
    with both.client(door=door) as client:
        assert client.post(CHAT, json=BODY).status_code == 200
        with no_more_connections():
            for _ in range(5):
                assert client.post(CHAT, json=BODY).status_code == 200
            with both.client("", door="web") as page:
                told = page.get("/api/tenants/", headers={"authorization": "Token none"})
            assert (told.status_code, told.json()["status"], told.headers["retry-after"]) == (503, 503, "5")
            assert client.post(CHAT, json=BODY).status_code == 200


@pytest.mark.shows("G30")
def test_no_connection_is_held_while_streaming(both: TestHouse) -> None:
    body = {**BODY, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(both.client(door="web"))
        client.get("/v1/models")
        before = connections()
        for _ in range(4):
            stream = stack.enter_context(client.stream("POST", CHAT, json=body))
            next(stream.iter_raw())
        assert connections() <= before

"""Limits count alike whatever is asked and however it ends, and never let more in than there is (G1, G3, G4, G5).

Here of requests a minute; test_limits_of_amounts and test_balances say the same of tokens and money.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
import redis

from bench.rows import Key
from tenants.models import UsageRecord
from tests.doubles.engine import Wire, answers, chunk, streams
from tests.gateway.cases.desk import CHAT, MESSAGES, RESPONSES, Answer, Case, Served, at_once

LIMIT_HEADERS: Final = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")


def used(case: Case, key: Key) -> int:
    """What the shared counter has of a key."""
    with redis.Redis.from_url(case.house.environ["VALKEY_STATE_URL"]) as valkey:
        return int(valkey.hget(case.house.counter(key), "used") or 0)


def endings(case: Case) -> list[Served]:
    """Models whose engines end as they end for streams and for whole answers: well, refusing, dying."""

    async def die(wire: Wire) -> None:
        wire.die()

    return [
        case.serve(case.says("A")),
        case.serve(answers({"error": {"message": "no"}}, status=400)),
        case.serve(streams(chunk("A"), then=die)),
    ]


def test_g01_a_stream_counts_like_its_twin_however_it_ends(streamed: Case, whole: Case) -> None:
    stands = []
    for case in (streamed, whole):
        key = case.house.new_key("twin", rpm_limit=5)
        told = [case.ask(served.name, key=key) for served in endings(case)]
        refused = [case.ask("case-none", key=key), case.ask("hidden", key=key)]
        assert [answer.status for answer in refused] == [404, 404]
        stands.append(([[answer.headers[name] for name in LIMIT_HEADERS] for answer in told], used(case, key)))
    assert stands[0] == stands[1] == ([["5", "4"], ["5", "3"], ["5", "2"]], 3)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_g01_every_dialect_counts_once(case: Case, path: str) -> None:
    key = case.house.new_key("dialect", rpm_limit=2)
    served = case.serve(case.says("A"))
    told = [case.ask(served.name, path, key=key) for _ in range(3)]
    assert [answer.status for answer in told] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in told] == ["1", "0", "0"]
    assert used(case, key) == 2


def _through_both_doors(case: Case, served: Served, key: Key, count: int) -> list[Answer]:
    other = Case(case.house, case.engines, "relay" if case.door == "drf" else "drf", case.streamed)
    asks: list[Callable[[], Answer]] = [
        partial((case, other)[number % 2].ask, served.name, key=key) for number in range(count)
    ]
    return at_once(*asks)


def test_g03_fifty_at_once_on_what_covers_ten(case: Case) -> None:
    key = case.house.new_key("ten a minute", rpm_limit=10)
    served = case.serve(case.says("A"))
    told = _through_both_doors(case, served, key, 50)
    assert sorted(answer.status for answer in told) == [200] * 10 + [429] * 40
    assert len(served.received) == 10
    for answer in told:
        if answer.status == 200:
            case.row(answer)
    assert UsageRecord.objects.filter(model=served.name).count() == 10
    assert used(case, key) == 10


@pytest.mark.shows("G4")
def test_g04_eight_released_together_get_no_more_than_is_left(case: Case) -> None:
    key = case.house.new_key("seven a minute", rpm_limit=7)
    served = case.serve(case.says("A"))
    for left in (6, 5, 4):
        assert case.ask(served.name, key=key).headers["x-ratelimit-remaining-requests"] == str(left)
    told = _through_both_doors(case, served, key, 8)
    assert sorted(answer.status for answer in told) == [200] * 4 + [429] * 4
    remaining = sorted(int(answer.headers["x-ratelimit-remaining-requests"]) for answer in told if answer.status == 200)
    assert remaining[0] == 0  # each is told how the limit stood when it was, others' requests counted
    assert remaining[-1] <= 3
    assert used(case, key) == 7


def test_g05_a_429_says_limit_used_and_reset(case: Case) -> None:
    key = case.house.new_key("one a minute", rpm_limit=1)
    served = case.serve(case.says("A"))
    begun = time.monotonic()
    assert case.ask(served.name, key=key).status == 200
    refused = case.ask(served.name, key=key)
    assert refused.status == 429
    seconds = int(refused.headers["retry-after"])
    assert 59 - (time.monotonic() - begun) <= seconds <= 61
    assert refused.headers["x-ratelimit-limit-requests"] == "1"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.error == {
        "message": f"Rate limit reached for requests per minute of this key: limit 1, used 1, reserved 0, "
        f"requested 1, reset in {seconds} s.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert len(served.received) == 1

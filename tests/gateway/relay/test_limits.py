"""Requests a minute in real Valkey: never more than the limit in any minute, all limits or none."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.embedded.valkey import ValkeyServer
from core.errors import RateLimited, StateStoreUnavailable
from gateway.relay.limits import _SCRIPT, Limit, Standing, ValkeyRateLimiter
from gateway.relay.valkey import ValkeyClient

PREFIX = "limits:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    folder = tmp_path_factory.mktemp("valkey")
    server = ValkeyServer(folder / "data", log=folder / "log", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: ValkeyServer) -> AsyncIterator[ValkeyClient]:
    client = ValkeyClient(server.database_url(0), deadline_seconds=0.5)
    yield client
    await client.close()


@pytest.fixture
def limiter(client: ValkeyClient) -> ValkeyRateLimiter:
    return ValkeyRateLimiter(client, prefix=PREFIX)


def a_limit(requests: int) -> Limit:
    return Limit(str(uuid4()), requests)


async def test_the_limit_is_counted_down_and_then_refused(limiter: ValkeyRateLimiter) -> None:
    limit = a_limit(3)
    standings = [await limiter.acquire([limit]) for _ in range(3)]
    assert [s.used for s in standings] == [1, 2, 3]
    assert dict(standings[1].headers())[b"x-ratelimit-remaining-requests"] == b"1"
    with pytest.raises(RateLimited) as refused:
        await limiter.acquire([limit])
    error = refused.value
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert error.retry_after_seconds is not None
    assert 59 <= error.retry_after_seconds <= 61
    assert error.message == (
        f"Rate limit reached for requests per minute: limit 3, used 3, reset in {error.retry_after_seconds} s."
    )
    assert dict(error.headers)[b"x-ratelimit-remaining-requests"] == b"0"


@pytest.mark.shows("G4")
async def test_fifty_at_once_never_get_more_than_there_is(server: ValkeyServer) -> None:
    limit = a_limit(10)
    clients = [ValkeyClient(server.database_url(0), deadline_seconds=5.0) for _ in range(5)]
    limiters = [ValkeyRateLimiter(client, prefix=PREFIX) for client in clients]
    outcomes = await asyncio.gather(*(limiters[n % 5].acquire([limit]) for n in range(50)), return_exceptions=True)
    assert sum(isinstance(outcome, Standing) for outcome in outcomes) == 10
    assert sum(isinstance(outcome, RateLimited) for outcome in outcomes) == 40
    for client in clients:
        await client.close()


async def test_a_request_counts_under_all_limits_or_none(limiter: ValkeyRateLimiter) -> None:
    wide, narrow = a_limit(100), a_limit(1)
    standing = await limiter.acquire([wide, narrow])
    assert (standing.limit, standing.used) == (1, 1)  # the one with the least left
    for _ in range(5):
        with pytest.raises(RateLimited, match="limit 1, used 1"):
            await limiter.acquire([wide, narrow])
    assert (await limiter.acquire([wide])).used == 2


async def test_a_lowered_limit_holds_at_once(limiter: ValkeyRateLimiter) -> None:
    limit = a_limit(5)
    for _ in range(4):
        await limiter.acquire([limit])
    with pytest.raises(RateLimited, match="limit 2, used 4"):
        await limiter.acquire([Limit(limit.name, 2)])


async def test_an_emptied_valkey_starts_anew_and_knows_the_script_again(
    limiter: ValkeyRateLimiter, client: ValkeyClient
) -> None:
    limit = a_limit(2)
    await limiter.acquire([limit])
    await client.call("FLUSHALL")
    await client.call("SCRIPT", "FLUSH")
    assert (await limiter.acquire([limit])).used == 1


async def test_what_cannot_be_known_is_503_in_time(server: ValkeyServer) -> None:
    client = ValkeyClient(server.database_url(0), deadline_seconds=0.05)
    limiter = ValkeyRateLimiter(client, prefix=PREFIX)
    await limiter.acquire([a_limit(1)])
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = asyncio.get_running_loop().time()
        with pytest.raises(StateStoreUnavailable) as refused:
            await limiter.acquire([a_limit(1)])
        assert asyncio.get_running_loop().time() - began < 0.3
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await client.close()


# The script's own clock cannot be turned, so for these the time is an argument.
_TIMED = _SCRIPT.replace(b"redis.call('TIME')", b"{ARGV[#ARGV]}").decode()


def run_at(client: "redis.Redis", name: str, second: int, limit: int) -> bool:
    reply: Any = client.eval(_TIMED, 1, name, 60, limit, second)
    return bool(reply[0] == 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.lists(st.integers(0, 25), min_size=1, max_size=60))
def test_never_more_than_the_limit_in_any_minute_and_never_less_than_could_be(
    server: ValkeyServer, limit: int, gaps: list[int]
) -> None:
    admitted: list[int] = []
    now = 1_000_000
    name = f"timed:{uuid4()}"
    with redis.Redis.from_url(server.database_url(1)) as client:
        for gap in gaps:
            now += gap
            in_window = [second for second in admitted if second >= now - 60]
            assert run_at(client, name, now, limit) == (len(in_window) < limit)
            if len(in_window) < limit:
                admitted.append(now)
    for second in admitted:
        assert sum(second <= other <= second + 60 for other in admitted) <= limit


def test_a_clock_that_steps_back_a_little_frees_nothing(server: ValkeyServer) -> None:
    name = f"timed:{uuid4()}"
    with redis.Redis.from_url(server.database_url(1)) as client:
        assert run_at(client, name, 1000, 1)
        assert not run_at(client, name, 980, 1)
        assert not run_at(client, name, 1060, 1)
        assert run_at(client, name, 1061, 1)


def test_a_clock_set_back_by_hours_does_not_lock_out_for_hours(server: ValkeyServer) -> None:
    name = f"timed:{uuid4()}"
    with redis.Redis.from_url(server.database_url(1)) as client:
        assert run_at(client, name, 100_000, 1)
        assert run_at(client, name, 90_000, 1)
        assert not run_at(client, name, 90_001, 1)

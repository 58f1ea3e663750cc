"""What a process tells of instances that it leaves alone: which, since when, why; written only where it is news."""

from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from gateway.policies.breaker import FAILURES_TO_OPEN, LONELY_SECONDS, OPEN_SECONDS, AttemptOutcome, Opened
from gateway.relay.breaker_board import (
    LAPSE_SECONDS,
    LASTING_SECONDS,
    MOST_TOLD,
    RENEW_SECONDS,
    BreakerBoard,
    LeftAlone,
    Word,
)
from gateway.relay.plan import Api, Endpoint
from gateway.relay.valkey import ValkeyClient, ValkeyRefused
from tests.gateway.relay.test_picker import MODEL, NONE, Pool

WALL = 1_760_000_000.0
PROCESS = UUID(int=7)
KEY = f"t:breakers:{PROCESS.hex}"


class _Valkey:
    def __init__(self) -> None:
        self.sent: list[list[tuple[Any, ...]]] = []
        self.refuses = False

    async def pipeline(self, commands: list[tuple[Any, ...]], *, deadline_seconds: float) -> list[Any]:
        self.sent.append(commands)
        return [ValkeyRefused("OOM")] if self.refuses else [b"OK"] * len(commands)

    def word(self) -> list[LeftAlone]:
        """What was written last, one by one."""
        return self.whole_word().left_alone

    def whole_word(self) -> Word:
        command, key, text, *expires = self.sent[-1][0]
        assert (command, key, expires) == ("SET", KEY, ["EX", LAPSE_SECONDS])
        return msgspec.json.decode(text, type=Word)


class _Told:
    """A board over a pool whose clock runs from 0 while the wall's runs from WALL."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.clock, self.start = self.pool.clock, self.pool.clock.monotonic()
        self.valkey = _Valkey()
        self.board = BreakerBoard(
            self.pool.balancer, cast(ValkeyClient, self.valkey), prefix="t:", process_id=PROCESS, door="relay",
            clock=self.clock, now=lambda: WALL + self.clock.monotonic() - self.start,
        )  # fmt: skip

    def fail(self, endpoint: Endpoint, outcome: AttemptOutcome, times: int = 1) -> None:
        for _ in range(times):
            trial = self.pool.balancer.started(endpoint)
            self.pool.balancer.finished(endpoint, outcome, trial=trial)


@pytest.fixture
def told() -> _Told:
    return _Told()


async def test_an_open_breaker_is_told_with_since_when_why_and_when_it_is_tried(told: _Told) -> None:
    failing, refusing, _well = told.pool.add(), told.pool.add(), told.pool.add()
    await told.board.tell()
    told.fail(failing, AttemptOutcome.FAILED, FAILURES_TO_OPEN - 1)
    await told.board.tell()
    assert told.valkey.sent == []
    told.fail(failing, AttemptOutcome.FAILED)
    told.clock.advance(3)
    told.fail(refusing, AttemptOutcome.REFUSED_CONNECTION)
    await told.board.tell()
    assert told.valkey.word() == [
        LeftAlone(failing.instance_id, WALL, Opened.FAILED, WALL + OPEN_SECONDS, WALL + OPEN_SECONDS),
        LeftAlone(refusing.instance_id, WALL + 3, Opened.REFUSED, WALL + 5, WALL + 5),
    ]


async def test_the_only_one_that_refuses_connections_is_told_to_be_tried_as_soon_as_it_is(told: _Told) -> None:
    endpoint = told.pool.add()
    for _ in range(5):
        told.fail(endpoint, AttemptOutcome.REFUSED_CONNECTION)
        told.clock.advance(1)
    await told.board.tell()
    trial_at, until = WALL + 4 + LONELY_SECONDS, WALL + 4 + 30
    assert told.valkey.word() == [LeftAlone(endpoint.instance_id, WALL + 4, Opened.REFUSED, trial_at, until)]
    assert told.pool.balancer.pick(MODEL, Api.CHAT, NONE) == endpoint  # at that moment
    told.pool.add()
    await told.board.tell()
    assert told.valkey.word() == [LeftAlone(endpoint.instance_id, WALL + 4, Opened.REFUSED, until, until)]
    assert told.pool.balancer.pick(MODEL, Api.CHAT, NONE) != endpoint


async def test_it_is_left_alone_since_the_first_time_until_a_trial_succeeds(told: _Told) -> None:
    endpoint = told.pool.add()
    told.fail(endpoint, AttemptOutcome.REFUSED_CONNECTION)
    await told.board.tell()
    told.clock.advance(2)
    trial = told.pool.balancer.started(endpoint)
    await told.board.tell()
    assert told.valkey.word() == [LeftAlone(endpoint.instance_id, WALL, Opened.REFUSED, None, WALL + 2)]
    told.pool.balancer.finished(endpoint, AttemptOutcome.FAILED, trial=trial)
    await told.board.tell()
    until = WALL + 2 + OPEN_SECONDS
    assert told.valkey.word() == [LeftAlone(endpoint.instance_id, WALL, Opened.TRIAL, until, until)]
    told.clock.advance(OPEN_SECONDS)
    told.fail(endpoint, AttemptOutcome.OK)
    await told.board.tell()
    assert told.valkey.sent[-1] == [("DEL", KEY), ("ZREM", "t:breakers", PROCESS.hex)]
    counters = told.pool.balancer.counters
    assert (counters.opened_refused, counters.opened_failed) == (1, 1)


async def test_where_too_many_are_left_alone_those_that_nobody_asks_for_are_not_told(told: _Told) -> None:
    for _ in range(MOST_TOLD - 1):
        told.fail(told.pool.add(), AttemptOutcome.REFUSED_CONNECTION)
    tried = told.pool.add()
    told.fail(tried, AttemptOutcome.REFUSED_CONNECTION)
    told.clock.advance(60)
    told.pool.balancer.started(tried)
    newest = [told.pool.add() for _ in range(2)]
    for endpoint in newest:
        told.fail(endpoint, AttemptOutcome.REFUSED_CONNECTION)
    await told.board.tell()
    word = told.valkey.word()
    assert len(word) == MOST_TOLD
    assert {one.instance_id for one in word} >= {endpoint.instance_id for endpoint in (tried, *newest)}
    assert [one.since for one in word] == [WALL] * (MOST_TOLD - 2) + [WALL + 60] * 2
    whole = told.valkey.whole_word()
    assert (whole.more, whole.more_asked) == (2, 0)
    for _ in range(MOST_TOLD):
        told.fail(told.pool.add(), AttemptOutcome.REFUSED_CONNECTION)
    await told.board.tell()
    whole = told.valkey.whole_word()
    assert (len(whole.left_alone), whole.more, whole.more_asked) == (MOST_TOLD, MOST_TOLD + 2, 0)
    told.clock.advance(LASTING_SECONDS + 1)  # it was no restart
    await told.board.tell()
    assert told.valkey.whole_word().more_asked == 3


async def test_what_is_no_news_is_renewed_before_it_lapses_and_no_oftener(told: _Told) -> None:
    told.fail(told.pool.add(), AttemptOutcome.REFUSED_CONNECTION)
    for _ in range(int(3 * RENEW_SECONDS)):
        await told.board.tell()
        told.clock.advance(1)
    assert len(told.valkey.sent) == 3
    assert RENEW_SECONDS < LAPSE_SECONDS / 2


async def test_what_valkey_did_not_take_is_told_again(told: _Told) -> None:
    told.fail(told.pool.add(), AttemptOutcome.REFUSED_CONNECTION)
    told.valkey.refuses = True
    with pytest.raises(ValkeyRefused):
        await told.board.tell()
    told.valkey.refuses = False
    await told.board.tell()
    await told.board.tell()
    assert len(told.valkey.sent) == 2


def test_openings_are_counted_and_trials_that_say_nothing_are_not(told: _Told) -> None:
    endpoint = told.pool.add()
    told.fail(endpoint, AttemptOutcome.FAILED, FAILURES_TO_OPEN)
    told.clock.advance(OPEN_SECONDS)
    told.fail(endpoint, AttemptOutcome.NEUTRAL)
    told.pool.balancer.finished(endpoint, AttemptOutcome.FAILED)  # sent before it opened
    assert told.pool.balancer.counters.opened_failed == 1
    told.fail(endpoint, AttemptOutcome.FAILED)
    assert told.pool.balancer.counters.opened_failed == 2

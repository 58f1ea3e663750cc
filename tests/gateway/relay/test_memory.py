"""The bound on what requests hold in memory."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import SystemClock
from core.ids import uuid7
from gateway.relay.deadlines import Deadlines
from gateway.relay.exchange import Exchange
from gateway.relay.memory import Claim, MemoryBudget, RelayMemoryExhausted
from gateway.relay.plan import Api, Ready, Settlement, SlimRequest, Work
from gateway.relay.splice import parse_body
from gateway.relay.upstream import UpstreamClient
from tests.doubles.engine import EngineDouble, answers, completion
from tests.gateway.relay.door.house import PRINCIPAL, FirstPicker, NotedTicket, chat, endpoint


def test_what_does_not_fit_is_refused_counted_and_not_held() -> None:
    misses: list[int] = []
    budget = MemoryBudget(100, on_miss=lambda: misses.append(1))
    claim, other = Claim(budget), Claim(budget)
    claim.take(60)
    with pytest.raises(RelayMemoryExhausted) as refused:
        other.take(41)
    assert (refused.value.status, refused.value.code) == (503, "relay_memory_exhausted")
    assert refused.value.retry_after_seconds == 1.0
    assert (budget.held_bytes, misses) == (60, [1])
    other.take(40)
    claim.release()
    claim.release()
    assert budget.held_bytes == 40


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.booleans())))
def test_never_more_than_the_cap_and_nothing_at_the_end(steps: list[tuple[int, int, bool]]) -> None:
    budget = MemoryBudget(100)
    claims = [Claim(budget) for _ in range(4)]
    for index, count, release in steps:
        if release:
            claims[index].release()
        else:
            try:
                claims[index].take(count)
            except RelayMemoryExhausted:
                claims[index].release()
        assert 0 <= budget.held_bytes <= 100
    for claim in claims:
        claim.release()
    assert budget.held_bytes == 0


@pytest.mark.parametrize(("cap_bytes", "status"), [(1 << 20, 503), (64 << 20, 200)])
async def test_a_long_answer_is_held_within_the_budget_and_let_go(cap_bytes: int, status: int) -> None:
    misses: list[int] = []
    budget = MemoryBudget(cap_bytes, on_miss=lambda: misses.append(1))
    settlements: list[Settlement] = []
    async with EngineDouble(answers(completion("x" * (8 << 20)))) as engine:
        client, clock = UpstreamClient(memory=budget), SystemClock()
        body = json.dumps(chat()).encode()
        request = SlimRequest(uuid7(), Api.CHAT, "/v1/chat/completions", [], body, clock.monotonic())
        work = Work(Api.CHAT, request.path, body, parse_body(Api.CHAT, body))
        ready = Ready(request, PRINCIPAL, work, FirstPicker([endpoint(engine.port)]), NotedTicket(settlements))
        exchange = Exchange(ready, client, clock, Deadlines())
        head = await exchange.open()
        told = await exchange.next_chunk()
        await client.aclose()
    assert (head.status, [settlement.status for settlement in settlements]) == (status, [status])
    assert budget.held_bytes == 0
    assert (b"relay_memory_exhausted" in told) == bool(misses) == (status == 503)

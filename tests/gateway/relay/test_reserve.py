"""What is reserved for whom, when, and that every way out gives it back or settles it."""

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from core.errors import QuotaExceeded, RateLimited
from gateway.relay.dialects.interpreter import Admit, Interpreter
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.pipeline import Pipeline
from gateway.relay.plan import Api, Outcome, Ready, Rejected, Settlement, SlimRequest, Usage, UsageSource, Work
from gateway.relay.reserve import Reserver
from gateway.relay.rows import LIMITS, MODELS, PRICES, LimitRow, PriceRow
from gateway.relay.splice import parse_body
from tenants.policies.pricing import PriceTag
from tenants.principal import Principal
from tenants.usage import decode_row
from tests.doubles.limiter import NotingLimiter
from tests.gateway.relay.doors import BODY, NOW, TENANT, Door

PRICES_OF_TINY = PriceTag(
    input_micros=1_000_000, cached_input_micros=2_000_000, output_micros=3_000_000, request_micros=5
)
ENDING = Settlement(Outcome.SUCCESS, 200, Usage(7, 0, 3, UsageSource.ENGINE), 0.1)


class Counter:
    """Counts every prompt as so many tokens."""

    def __init__(self) -> None:
        self.tokens: int | None = 11
        self.asked = 0

    async def count(
        self, request: SlimRequest, work: Work, model_id: UUID, tenant_id: UUID | None = None
    ) -> int | None:
        self.asked += 1
        return self.tokens


class Reading(Interpreter):
    """Asks whether it may read; the size of what it found is known afterwards only."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None

    async def interpret(self, request: SlimRequest, principal: Principal, admit: Admit) -> Work:
        parsed = parse_body(Api.CHAT, request.body)
        await admit(parsed.model)
        if self.failure is not None:
            raise self.failure
        return Work(Api.CHAT, "/v1/chat/completions", request.body, parsed)


class Limited(Door):
    """The same under limits of a test's choice."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.counter = Counter()
        self.reserver = Reserver(self.snapshot, self.limiter, now=lambda: NOW, counter=self.counter)
        self.interpreter = Reading()
        self.pipeline = Pipeline(
            door="relay",
            follower=self.follower,
            authentication=self.authentication,
            permission=self.permission,
            reserver=self.reserver,
            balancer=self.pipeline._balancer,
            tickets=self.settler,
            interpreter=self.interpreter,
        )

    def limit(self, *metrics: str, window: str = "day") -> None:
        rows = [
            LimitRow(uuid4(), TENANT, False, None, "", metric, window, 10**6, None, None, None, 0.0, "UTC")
            for metric in metrics
        ]
        self.snapshot.apply(LIMITS, [], rows)

    def ready(self, decision: Any) -> Ready:
        assert isinstance(decision, Ready), decision
        return decision


@pytest.fixture
def door(tmp_path: Path) -> Limited:
    return Limited(tmp_path / "spool")


async def test_far_from_limits_a_request_is_admitted_without_a_task(door: Limited) -> None:
    door.limit("requests", "tokens")
    decision = door.ready(door.pipeline.prepare_now(door.request()))
    (made,) = door.limiter.made
    assert made.bound == Charge(len(BODY) + 256 + 16, 4096)
    assert decision.work.most_tokens == 4096
    assert (b"x-ratelimit-limit-tokens", b"1000000") in decision.response_headers
    decision.ticket.settle(ENDING)
    assert made.settled == [(Charge(7, 3), 1)]


def test_where_it_has_to_be_asked_for_nothing_is_done_at_once(door: Limited) -> None:
    door.limit("requests")
    door.limiter.at_hand = False
    assert door.pipeline.prepare_now(door.request()) is None
    assert (door.limiter.made, door.spool.open_count) == ([], 0)


async def test_limits_of_requests_alone_change_no_byte(door: Limited) -> None:
    door.limit("requests", "concurrency")
    decision = door.ready(await door.prepare())
    assert decision.work.most_tokens is None
    assert door.limiter.made[0].bound == Charge()


async def test_limits_that_are_not_of_requests_are_not_asked(door: Limited) -> None:
    door.limit("gpus", "gpu_memory", "held_requests")
    door.ready(await door.prepare())
    assert door.limiter.made == []


@pytest.mark.parametrize(("owner", "most"), [(TENANT, 256 // 8), (UUID(int=99), 4096)])
async def test_a_tenants_own_version_ends_its_answers_and_nobody_elses(door: Limited, owner: UUID, most: int) -> None:
    model = door.snapshot.model("tiny")
    assert model is not None
    known = {"context_tokens": 8192, "longest_context_tokens": 8192, "own_contexts": ((owner, 256, 8192),)}
    door.snapshot.apply(MODELS, [model.id], [msgspec.structs.replace(model, **known)])
    door.limit("tokens")
    decision = door.ready(await door.prepare())
    assert decision.work.most_tokens == most


async def test_money_is_bound_by_the_dearest_price_in_effect(door: Limited) -> None:
    version = uuid4()
    dear = PriceRow(uuid4(), "tiny", version, 0.0, PriceTag(output_micros=9_000_000))
    late = PriceRow(uuid4(), "tiny", None, NOW + 1, PriceTag(output_micros=10**9))
    door.snapshot.apply(PRICES, [], [PriceRow(uuid4(), "tiny", None, 0.0, PRICES_OF_TINY), dear, late])
    door.limit("money")
    door.ready(await door.prepare())
    assert door.limiter.made[0].bound.micros == 4096 * 9
    assert (door.limiter.made[0].bound.micros) > (len(BODY) + 272) * 2 + 4096 * 3 + 5


async def test_a_request_costs_what_it_was_bound_by_when_prices_rise_meanwhile(door: Limited) -> None:
    version = uuid4()
    before = PriceRow(uuid4(), "tiny", None, 0.0, PRICES_OF_TINY)
    door.snapshot.apply(PRICES, [], [before])
    door.settler._price = door.snapshot.price
    door.limit("money")
    decision = door.ready(await door.prepare())
    dearer = [PriceRow(uuid4(), "tiny", each, 0.1, PriceTag(output_micros=10**9)) for each in (None, version)]
    door.snapshot.apply(PRICES, [], dearer)
    decision.ticket.settle(ENDING)
    (row,) = [decode_row(payload) for _, payload in door.spool.rows_after(0, limit=9)]
    assert row.price_id == before.id
    assert door.limiter.made[0].settled == [(Charge(7, 3, row.cost_micros), 1)]
    assert row.cost_micros <= door.limiter.made[0].bound.micros


async def test_the_same_limits_are_the_same_objects_until_they_change(door: Limited) -> None:
    door.limit("tokens")
    door.ready(await door.prepare())
    door.model("another")  # a change of something else
    door.ready(await door.prepare())
    door.limit("requests")
    door.ready(await door.prepare())
    first, second, third = (made.limits for made in door.limiter.made)
    assert first[0] is second[0]
    assert len(third) == 2


async def test_near_the_end_of_a_budget_an_engine_counts_and_it_is_tried_again(door: Limited) -> None:
    door.limit("tokens")
    refusal = QuotaExceeded(retry_after_seconds=60)
    refusal.metric, refusal.lacking = "tokens", 10
    door.limiter.refusals = [refusal]
    door.ready(await door.prepare())
    assert door.limiter.made[0].bound == Charge(11 + 16, 4096)
    door.limiter.refusals = [refusal, refusal]
    assert (await door.refusal()) is refusal
    door.counter.tokens = None
    door.limiter.refusals = [refusal]
    assert (await door.refusal()) is refusal
    assert door.counter.asked == 3


@pytest.mark.parametrize(("metric", "lacking"), [("requests", 1), ("output_tokens", 10), ("tokens", 4000)])
async def test_no_engine_counts_where_that_cannot_help(door: Limited, metric: str, lacking: int) -> None:
    door.limit("tokens", "requests")
    refusal = RateLimited(retry_after_seconds=60)
    refusal.metric, refusal.lacking = metric, lacking
    door.limiter.refusals = [refusal]
    assert (await door.refusal()) is refusal
    assert door.counter.asked == 0
    assert door.limiter.open == []


def stored(door: Limited) -> SlimRequest:
    return msgspec.structs.replace(door.request(), api=Api.RESPONSES)


async def test_what_reads_first_is_counted_first_and_by_its_size_afterwards(door: Limited) -> None:
    door.limit("requests", "tokens")
    decision = door.ready(await door.pipeline.prepare(stored(door)))
    calls, amounts = door.limiter.made
    assert ([row.metric for row in calls.limits], calls.bound) == (["requests"], Charge())
    assert [row.metric for row in amounts.limits] == ["tokens"]
    assert {name for name, _ in decision.response_headers} >= {
        b"x-ratelimit-limit-requests",
        b"x-ratelimit-limit-tokens",
    }
    decision.ticket.settle(ENDING)
    assert calls.settled == amounts.settled == [(Charge(7, 3), 1)]


async def test_a_reading_that_fails_or_a_size_that_does_not_fit_gives_all_back(door: Limited) -> None:
    door.limit("requests", "tokens")
    door.interpreter.failure = RateLimited()
    assert isinstance(await door.pipeline.prepare(stored(door)), Rejected)
    door.interpreter.failure = None
    door.limiter.at_hand = False
    door.limiter.refusals = [None, RateLimited()]
    assert isinstance(await door.pipeline.prepare(stored(door)), Rejected)
    assert [made.settled for made in door.limiter.made] == [[(NOTHING, 0)]] * 2
    assert door.spool.open_count == 0


async def test_limits_without_a_store_are_503_and_keys_without_limits_go_on(door: Limited) -> None:
    door.reserver._limiter = None
    door.ready(await door.prepare())
    door.limit("requests")
    error = await door.refusal()
    assert (error.status, error.code) == (503, "state_store_unavailable")
    assert isinstance(door.limiter, NotingLimiter)

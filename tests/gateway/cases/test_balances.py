"""Balances and buckets through both doors at once: never more than there is, and no less (G3, R53)."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db.models import Sum

from bench.house import wait_until
from bench.rows import Key
from tenants.actor import SYSTEM
from tenants.models import ApiKey, UsageRecord
from tenants.policies.pricing import PriceTag
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tests.gateway.cases.desk import Answer, Case, CasesHouse, Engines, Served, at_once

PER_CALL = PriceTag(input_micros=0, cached_input_micros=0, output_micros=0, request_micros=1_000)
PER_TOKEN = PriceTag(input_micros=1_000_000, cached_input_micros=1_000_000, output_micros=1_000_000, request_micros=5)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def case(request: pytest.FixtureRequest, house: CasesHouse, engines: Engines) -> Case:
    """Streamed and not; the doors are asked both."""
    return Case(house, engines, "relay", bool(request.param))


def both_doors(case: Case, served: Served, key: Key, count: int, **members: Any) -> list[Answer]:
    """So many calls at the same moment, half of them at each door."""
    other = Case(case.house, case.engines, "relay" if case.door == "drf" else "drf", case.streamed)
    asks: list[Callable[[], Answer]] = [
        partial((case, other)[number % 2].ask, served.name, key=key, **members) for number in range(count)
    ]
    return at_once(*asks)


def spent(served: Served) -> int:
    rows = UsageRecord.objects.filter(model=served.name)
    return int(rows.aggregate(total=Sum("cost_micros"))["total"] or 0)


@pytest.mark.shows("G3")
@pytest.mark.parametrize("holder", ["key", "tenant"])
def test_g03_fifty_at_once_on_a_balance_for_ten(case: Case, holder: str) -> None:
    """Ten are served and forty told so, whoever's balance it is; then nobody is."""
    model = f"case-balance-{holder}-{case.streamed}".lower()
    key = case.house.new_key("a balance")
    set_price(model, PER_CALL, actor=SYSTEM)
    about: dict[str, Any] = {"key": ApiKey.objects.get(pk=key.id)} if holder == "key" else {"model": model}
    create_limit(tenant=case.house.tenant, metric="money", window="month", amount=10_000, actor=SYSTEM, **about)
    served = case.serve(case.says("A"), exactly=model)
    told = both_doors(case, served, key, 50)
    assert sorted(answer.status for answer in told) == [200] * 10 + [429] * 40
    for answer in told:
        if answer.status == 429:
            assert answer.error["code"] == "insufficient_quota"
            assert "limit 0.01, used " in answer.error["message"], answer.error
    wait_until(lambda: UsageRecord.objects.filter(model=model).count() == 10, "ten rows")
    assert (len(served.received), spent(served)) == (10, 10_000)
    assert [answer.status for answer in both_doors(case, served, key, 4)] == [429] * 4
    assert len(served.received) == 10


@pytest.mark.shows("G3")
def test_g03_a_balance_is_not_overdrawn_where_nobody_knows_the_cost_before(case: Case) -> None:
    """What each may cost at most is reserved; what they cost less is spent by who comes after."""
    model = f"case-tokens-of-a-balance-{case.streamed}".lower()
    key = case.house.new_key("a balance of tokens")
    set_price(model, PER_TOKEN, actor=SYSTEM)
    balance = 10 * (5 + 7 + 60)
    create_limit(
        tenant=case.house.tenant, key=ApiKey.objects.get(pk=key.id), metric="money", window="month", amount=balance,
        actor=SYSTEM,
    )  # fmt: skip
    served = case.serve(case.says("A", usage=(7, 60)), exactly=model)
    admitted = 0
    for _ in range(6):
        told = both_doors(case, served, key, 50, max_tokens=60)
        assert {answer.status for answer in told} <= {200, 429}
        admitted += sum(answer.status == 200 for answer in told)
        engine_calls = sum(sent.path != "/tokenize" for sent in served.received)
        assert engine_calls == admitted <= 10
    wait_until(lambda: UsageRecord.objects.filter(model=model).count() == admitted, "their rows")
    assert 0 < spent(served) == admitted * (5 + 7 + 60) <= balance


@pytest.mark.shows("R53", "R83")
def test_a_bucket_of_a_hundred_and_ten_a_second_is_one_for_both_doors(
    house: CasesHouse, engines: Engines, record_property: Callable[[str, object], None]
) -> None:
    case = Case(house, engines, "relay", False)
    key = case.house.new_key("a bucket")
    create_limit(
        tenant=case.house.tenant, key=ApiKey.objects.get(pk=key.id), metric="requests", window="bucket", amount=100,
        refill_per_second=10.0, actor=SYSTEM,
    )  # fmt: skip
    served = case.serve(case.says("A"))
    began = time.monotonic()
    told: list[Answer] = []
    while len(told) < 160 or all(answer.status == 200 for answer in told):  # a slow machine's bucket fills meanwhile
        assert len(told) < 4_000, "nothing is refused"
        told += both_doors(case, served, key, 40)
    took = time.monotonic() - began
    admitted = sum(answer.status == 200 for answer in told)
    assert {answer.status for answer in told} == {200, 429}
    assert 100 <= admitted <= 100 + 10 * took + 1
    refused = next(answer for answer in told if answer.status == 429)
    assert refused.headers["x-ratelimit-limit-requests"] == "100"
    assert "limit 100" in refused.error["message"]
    assert refused.headers["retry-after"] == "1"

    pause = time.monotonic()
    wait_until(lambda: time.monotonic() - pause > 1.0, "a second")
    more = both_doors(case, served, key, 40)
    more_took = time.monotonic() - began
    assert sum(answer.status == 200 for answer in more) >= 10
    all_admitted = admitted + sum(answer.status == 200 for answer in more)
    assert all_admitted <= 100 + 10 * more_took + 1
    record_property("admitted", f"{all_admitted} in {more_took:.2f} s")
    assert sum(sent.path != "/tokenize" for sent in served.received) == all_admitted

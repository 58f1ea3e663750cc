"""Limits of tokens and money: reserved before, settled with what was used, alike at both doors (G1, G2, G5, G8)."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
import redis

from bench.house import wait_until
from bench.rows import Key
from gateway.relay.limiting.layout import area
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Limit, UsageRecord
from tenants.policies.pricing import PriceTag
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tests.doubles.engine import DONE, Received, Script, Wire, answers, chunk, streams
from tests.gateway.cases.desk import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SERVED, Answer, Case, at_once
from tests.waiting import stay_within_a_day

FAR: Final = 60_000
"""Room for every request, and near enough for processes to tell at once what was used."""

TAG: Final = PriceTag(input_micros=2_000_000, cached_input_micros=1_000_000, output_micros=10_000_000, request_micros=3)


def limited(case: Case, amount: int, *, metric: str = "tokens", window: str = "day") -> tuple[Key, Limit]:
    """A new key under a limit; a model that is served afterwards is served under it from the first."""
    stay_within_a_day()
    key = case.house.new_key("limited")
    row = ApiKey.objects.get(pk=key.id)
    limit = create_limit(tenant=case.house.tenant, key=row, metric=metric, window=window, amount=amount, actor=SYSTEM)
    return key, limit


def counted(case: Case, limit: Limit) -> dict[str, int]:
    """What the shared counter has of a limit."""
    with redis.Redis.from_url(case.house.environ["VALKEY_STATE_URL"], decode_responses=True) as valkey:
        names: Any = valkey.keys(f"{area(case.house.environ['GATEHOUSE_VALKEY_PREFIX'])}[cws]:{limit.pk.hex}*")
        fields: Any = valkey.hgetall(names[0]) if names else {}
    return {name: int(fields.get(name, 0)) for name in ("used", "held", "free")}


def wait_used(case: Case, limit: Limit, used: int) -> None:
    """Until the counter says so, with nothing reserved any more: what it holds lies free in slices."""

    def settled() -> bool:
        now = counted(case, limit)
        return now["used"] == used and now["held"] == now["free"]

    wait_until(settled, f"{used} used of {limit}, it is {counted(case, limit)}")


def used_of(rows: list[UsageRecord]) -> int:
    return sum((row.input_tokens or 0) + (row.output_tokens or 0) for row in rows)


# G1


@pytest.mark.shows("G1")
@pytest.mark.parametrize(("metric", "each"), [("tokens", 10), ("input_tokens", 7), ("output_tokens", 3)])
def test_g01_counters_move_for_a_stream_as_for_its_twin(streamed: Case, whole: Case, metric: str, each: int) -> None:
    for case in (streamed, whole):
        key, limit = limited(case, FAR, metric=metric)
        served = case.serve(case.says("A"), answers({"error": {"message": "no"}}, status=400), case.says("A", "B"))
        assert [case.ask(served.name, key=key).status for _ in range(3)] == [200, 400, 200]
        wait_used(case, limit, 2 * each)


@pytest.mark.shows("G1")
def test_g01_money_moves_for_a_stream_as_for_its_twin(streamed: Case, whole: Case) -> None:
    for case in (streamed, whole):
        key, limit = limited(case, 10 * FAR, metric="money", window="month")
        model = f"case-priced-{case.door}-{case.streamed}"
        set_price(model, TAG, actor=SYSTEM)
        served = case.serve(case.says("A"), exactly=model)
        row = case.row(case.ask(served.name, key=key))
        assert row.cost_micros == 7 * 2 + 3 * 10 + 3
        assert row.price_id is not None
        wait_used(case, limit, row.cost_micros)


# G2


@pytest.mark.shows("G2")
@pytest.mark.parametrize("path", [COMPLETIONS, MESSAGES, RESPONSES])
def test_g02_every_dialect_counts_its_tokens(case: Case, path: str) -> None:
    key, limit = limited(case, FAR)
    text = json.dumps({"id": "x", "model": SERVED, "choices": [{"index": 0, "text": "A", "finish_reason": "stop"}]})
    says = case.says("A")
    if path == COMPLETIONS:
        usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
        body = json.loads(text) | usage
        last = json.dumps({"id": "x", "model": SERVED, "choices": []} | usage)
        events = [f"data: {part}\n\n".encode() for part in (text, last)]
        says = streams(*events, DONE) if case.streamed else answers(body)
    served = case.serve(says)
    answer = case.ask(served.name, path, key=key)
    assert answer.status == 200, answer.body
    assert answer.headers["x-ratelimit-limit-tokens"] == str(FAR)
    wait_used(case, limit, 10)
    assert used_of([case.row(answer)]) == 10


@pytest.mark.shows("G2")
@pytest.mark.parametrize(
    ("path", "members", "said"),
    [
        ("/v1/embeddings", {"input": ["a", "b"]}, {"prompt_tokens": 3, "total_tokens": 3}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, {"total_tokens": 3}),
    ],
)
def test_g02_what_only_takes_in_counts_its_tokens(
    whole: Case, path: str, members: dict[str, Any], said: object
) -> None:
    key, limit = limited(whole, 300)
    data = {"data": [{"index": 0, "embedding": [0.5]}], "results": [{"index": 0, "relevance_score": 0.5}]}
    served = whole.serve(answers({"model": SERVED, **data, "usage": said}))
    content = json.dumps({"model": served.name, **members}).encode()
    answer = whole.ask(served.name, path, key=key, content=content)
    assert answer.status == 200, answer.body
    wait_used(whole, limit, 3)
    refused = whole.ask(served.name, path, key=key, content=content + b" " * 400)
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert len(served.received) == 1


# G5, R83


@pytest.mark.shows("G5")
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_g05_a_429_cites_the_budget_in_every_dialect(case: Case, path: str) -> None:
    key, limit = limited(case, 600)
    served = case.serve(case.says("A"))
    ends: dict[str, Any] = {"max_output_tokens": 40} if path == RESPONSES else {"max_tokens": 40}
    assert case.ask(served.name, path, key=key, **ends).status == 200
    wait_used(case, limit, 10)
    ends = dict.fromkeys(ends, 5000)
    refused = case.ask(served.name, path, key=key, **ends)
    assert refused.status == 429
    message = refused.error["message"]
    assert "tokens per day of this key: limit 600, used 10, reserved 0, requested " in message
    if path == MESSAGES:
        assert refused.error["type"] == "rate_limit_error"
    else:
        assert (refused.error["type"], refused.error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "retry-after" not in refused.headers  # no waiting makes room for what is larger than the limit
    assert refused.headers["x-ratelimit-limit-tokens"] == "600"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "590"


def test_a_budget_that_is_used_up_says_when_there_is_another(case: Case) -> None:
    key, limit = limited(case, 500)
    served = case.serve(case.says("A", usage=(100, 40)), case.says("A", usage=(100, 40)))
    assert case.ask(served.name, key=key, max_tokens=40).status == 200
    wait_used(case, limit, 140)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    most = (midnight - datetime.now(UTC)).total_seconds()
    refused = case.ask(served.name, key=key, max_tokens=40)
    assert refused.status == 429
    least = (midnight - datetime.now(UTC)).total_seconds()
    assert least - 1 <= int(refused.headers["retry-after"]) <= most + 1
    assert f"reset in {refused.headers['retry-after']} s." in refused.error["message"]


@pytest.mark.shows("R83")
@pytest.mark.parametrize(("metric", "amount"), [("requests", 6), ("tokens", 6 * 400)])
def test_both_doors_take_from_one_budget(case: Case, metric: str, amount: int) -> None:
    key, limit = limited(case, amount, metric=metric)
    served = case.serve(case.says("A", usage=(390, 10)))
    other = Case(case.house, case.engines, "relay" if case.door == "drf" else "drf", case.streamed)
    asks: list[Callable[[], Answer]] = [
        partial((case, other)[number % 2].ask, served.name, key=key, max_tokens=10) for number in range(16)
    ]
    told = at_once(*asks)
    admitted = sum(answer.status == 200 for answer in told)
    assert {answer.status for answer in told} == {200, 429}
    assert admitted == 6 if metric == "requests" else 3 <= admitted <= 6
    each = 1 if metric == "requests" else 400
    wait_used(case, limit, admitted * each)
    assert sum(sent.path == CHAT for sent in served.received) == admitted


# G8


@pytest.mark.shows("G8")
@pytest.mark.parametrize("usage", [(7, 0), (0, 0), None], ids=["no output", "zero", "nothing"])
def test_g08_what_is_charged_is_what_the_ledger_says(case: Case, usage: tuple[int, int] | None) -> None:
    key, limit = limited(case, FAR)
    served = case.serve(case.says("A", "B", usage=usage))
    row = case.row(case.ask(served.name, key=key))
    assert row.usage_source == ("estimated" if usage is None else "engine")
    if usage is not None:
        assert used_of([row]) == sum(usage)
    wait_used(case, limit, used_of([row]))


@pytest.mark.shows("G8")
@pytest.mark.parametrize("end", ["the client leaves", "the engine dies", "before the first word"])
def test_g08_an_aborted_stream_is_charged_as_its_row_says(streamed: Case, end: str) -> None:
    async def die(wire: Wire) -> None:
        wire.die()

    key, limit = limited(streamed, FAR)
    pieces = (chunk(role=True), chunk("A"), chunk("B"))
    if end == "before the first word":
        served = streamed.serve(answers({"error": {"message": "no"}}, status=400))
    else:
        served = streamed.serve(streams(*pieces, then=die if end == "the engine dies" else Wire.stall))
    if end == "the client leaves":
        body = streamed.body(served.name)
        with streamed.client.stream("POST", CHAT, json=body, headers=streamed.headers(key)) as response:
            said = response.iter_text()
            told = next(said)
            while '"B"' not in told:
                told += next(said)
    else:
        streamed.ask(served.name, key=key)
    row = streamed.row_of(served.name)
    assert row.reserved_input is None  # of a lost row only
    if end == "before the first word":
        assert (row.outcome, row.usage_source, used_of([row])) == ("failed", "none", 0)
    else:
        assert (row.usage_source, row.output_tokens) == ("estimated", 2)
    wait_used(streamed, limit, used_of([row]))


# Bounds


def test_an_answer_without_an_end_gets_one_only_where_tokens_are_limited(case: Case) -> None:
    key, _ = limited(case, FAR)
    served = case.serve(case.says("A"))
    for asked in (None, key):
        assert case.ask(served.name, key=asked).status == 200
        assert case.ask(served.name, key=asked, max_tokens=9).status == 200
    ends = [(sent.json.get("max_completion_tokens"), sent.json.get("max_tokens")) for sent in served.received]
    assert ends == [(None, None), (None, 9), (4096, None), (None, 9)]


@pytest.mark.parametrize("members", [{"n": 0}, {"n": -1}, {"max_tokens": -5}, {"n": 10**9}, {"max_tokens": 10**12}])
def test_absurd_numbers_are_refused_before_anything_is_reserved(whole: Case, members: dict[str, Any]) -> None:
    key, limit = limited(whole, FAR)
    served = whole.serve(whole.says("A"))
    refused = whole.ask(served.name, key=key, **members)
    assert (refused.status, refused.error["param"]) == (400, next(iter(members)))
    assert counted(whole, limit)["held"] == 0


def test_near_the_end_of_a_budget_the_prompt_is_counted_by_the_engine(case: Case) -> None:
    key, limit = limited(case, 1000)

    def engine(count: int) -> Script:
        says = case.says("A", usage=(count, 3))

        async def script(received: Received, wire: Wire) -> None:
            if received.path == "/tokenize":
                await answers({"count": count, "max_model_len": None, "tokens": []})(received, wire)
            else:
                await says(received, wire)

        return script

    served = case.serve(engine(400))
    prompt = [{"role": "user", "content": "word " * 400}]  # 2000 bytes are more than the budget
    assert case.ask(served.name, key=key, messages=prompt, max_tokens=20).status == 200
    wait_used(case, limit, 403)
    assert [sent.path for sent in served.received] == ["/tokenize", CHAT]
    assert served.received[0].json["messages"] == prompt
    assert case.ask(served.name, key=key, messages=prompt, max_tokens=20).status == 200
    refused = case.ask(served.name, key=key, messages=prompt, max_tokens=20)
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert "requested 436" in refused.error["message"]
    wait_used(case, limit, 806)

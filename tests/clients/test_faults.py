"""A real engine dies: the client is told, and the ledger says what happened."""

import json
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.services import grant_model
from tests.house import LlamaEngine, TestHouse

CHAT = "/v1/chat/completions"


@pytest.fixture
def doomed(house: TestHouse, request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    """An engine of its own with room for answers of seconds, serving the model `doomed`."""
    engine = LlamaEngine(house.folder, slots=1, slot_tokens=8192)
    engine.start()
    attach("doomed", engine.port, engine="llamacpp")
    grant_model(house.tenant, model_pattern="doomed", actor=SYSTEM)
    with house.client() as client:
        deadline = time.monotonic() + 30
        while client.post(CHAT, json=body(1, stream=False)).status_code != 200:
            assert time.monotonic() < deadline, "the relay does not learn of the new engine"
    yield engine
    engine.kill()


def body(tokens: int, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": "Hello"}]
    asked = {"model": "doomed", "messages": messages, "max_tokens": tokens, "stream": stream, "ignore_eos": True}
    # So much is said of each token that an engine cannot have ended a long answer before anybody reads it.
    return asked | ({"logprobs": True, "top_logprobs": 200} if stream else {})


@pytest.mark.shows("G12")
def test_killed_in_mid_stream(house: TestHouse, doomed: LlamaEngine) -> None:
    with house.client() as client, client.stream("POST", CHAT, json=body(8000, stream=True)) as response:
        assert response.status_code == 200
        request_id = response.headers["x-request-id"]
        lines: list[str] = []
        for line in response.iter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
            if len(lines) == 3:
                doomed.kill()
    assert "[DONE]" not in lines
    last = json.loads(lines[-1])
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == "upstream_error"
    events = [json.loads(line) for line in lines[:-1]]
    assert all(choice["finish_reason"] is None for event in events for choice in event["choices"])
    row = house.ledger_row(request_id)
    assert (row.outcome, row.status, row.usage_source) == ("truncated", 200, "estimated")
    assert row.output_tokens is not None
    assert row.output_tokens > 0


def test_killed_before_the_answer(house: TestHouse, doomed: LlamaEngine) -> None:
    doomed.kill()
    with house.client() as client:
        response = client.post(CHAT, json=body(4, stream=False))
    assert response.status_code in (502, 503)
    assert response.json()["error"]["type"] == "server_error"


def test_a_client_that_leaves_is_written_down_as_cancelled(house: TestHouse, doomed: LlamaEngine) -> None:
    with house.client() as client, client.stream("POST", CHAT, json=body(8000, stream=True)) as response:
        request_id = response.headers["x-request-id"]
        next(response.iter_lines())
    row = house.ledger_row(request_id)
    assert row.outcome == "cancelled"
    assert row.usage_source in ("estimated", "engine")


def test_the_others_are_not_disturbed(house: TestHouse, doomed: LlamaEngine) -> None:
    doomed.kill()
    with house.client() as client:
        answers: list[httpx.Response] = [
            client.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
            for _ in range(3)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]

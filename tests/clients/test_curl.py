"""The curl lines that documentation shows work as pasted."""

import json
import shutil
import subprocess

import pytest

from tests.house import TestHouse

if shutil.which("curl") is None:
    pytest.skip("curl is not installed", allow_module_level=True)

BODY = '{"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6}'


def curl(house: TestHouse, path: str, *options: str, key: str | None = None) -> "subprocess.CompletedProcess[str]":
    secret = house.key.secret if key is None else key
    command = ["curl", "-sS", "--max-time", "30", house.relay_url + path, "-H", f"Authorization: Bearer {secret}"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=True)


def test_lists_models(house: TestHouse) -> None:
    listed = json.loads(curl(house, "/v1/models").stdout)
    assert listed["object"] == "list"
    assert {entry["id"] for entry in listed["data"]} == {"tiny", "idle"}


def test_answers_a_chat(house: TestHouse) -> None:
    answer = json.loads(curl(house, "/v1/chat/completions", "-H", "Content-Type: application/json", "-d", BODY).stdout)
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] > 0


def test_streams_a_chat_to_its_end(house: TestHouse) -> None:
    streamed = BODY.replace('"max_tokens"', '"stream": true, "max_tokens"')
    text = curl(house, "/v1/chat/completions", "-N", "-H", "Content-Type: application/json", "-d", streamed).stdout
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "chat.completion.chunk" for event in events[:-1])
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("transfer", ["Expect: 100-continue", "Transfer-Encoding: chunked"])
def test_accepts_the_ways_curl_sends_a_body(house: TestHouse, transfer: str) -> None:
    answer = json.loads(curl(house, "/v1/chat/completions", "-H", transfer, "-d", BODY).stdout)
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_probes_need_no_key(house: TestHouse) -> None:
    for path in ("/healthz", "/readyz"):
        assert json.loads(curl(house, path, key="").stdout) == {"status": "ok"}
    assert "# TYPE" in curl(house, "/metrics", key="").stdout

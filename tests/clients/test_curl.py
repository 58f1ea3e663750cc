"""The curl lines that documentation shows work as pasted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.views.portal.quickstart import snippets
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


@pytest.mark.parametrize("name", ["curl", "python", "anthropic", "javascript"])
def test_what_the_quick_start_shows_is_answered_as_it_stands(house: TestHouse, tmp_path: Path, name: str) -> None:
    """As pasted, with the key where the page says that it belongs."""
    shown = snippets(base_url=f"{house.relay_url}/v1", model="tiny")[name]
    if name == "javascript":
        if shutil.which("node") is None:
            pytest.skip("Node.js is not installed")
        module = tmp_path / "hello.mjs"
        module.write_text(shown)
        made = _STAND_IN.format(base_url=f"{house.relay_url}/v1")
        (tmp_path / "node_modules" / "openai").mkdir(parents=True)
        (tmp_path / "node_modules" / "openai" / "index.mjs").write_text(made)
        (tmp_path / "node_modules" / "openai" / "package.json").write_text('{"name": "openai", "main": "index.mjs"}')
        command = ["node", str(module)]
    else:
        command = ["bash", "-c", shown] if name == "curl" else [sys.executable, "-c", shown]
    environ = os.environ | {"GATEHOUSE_API_KEY": house.key.secret}
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    if name == "curl":
        assert json.loads(ran.stdout)["model"] == "tiny"


_STAND_IN = """
export default class OpenAI {{
  constructor({{ baseURL, apiKey }}) {{
    if (baseURL !== "{base_url}") throw new Error(baseURL);
    const headers = {{ "content-type": "application/json", authorization: `Bearer ${{apiKey}}` }};
    const create = async (body) => {{
      const asked = {{ method: "POST", headers, body: JSON.stringify(body) }};
      const answer = await fetch(`${{baseURL}}/chat/completions`, asked);
      if (!answer.ok) throw new Error(await answer.text());
      return answer.json();
    }};
    this.chat = {{ completions: {{ create }} }};
  }}
}}
"""
"""In the place of the package, which no registry has to be asked for: the same members, over fetch."""

"""`manage.py replay` from the outside: its report, and one sentence for everything that is in the way."""

import io
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.ports import free_port

KEY = "sk-gh-test"
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2024-01-01 00:00:0{n},9,3\n" for n in range(6))
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
WHOLE = CHUNK + CHUNK + USAGE + "data: [DONE]\n\n"


@dataclass
class Door:
    """A door that answers each chat with the next of `answers`: a status, or the text of a stream."""

    url: str
    answers: list[int | str] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["tiny"])
    bodies: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def door() -> Iterator[Door]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.headers["authorization"] != f"Bearer {KEY}":
                return self.answer(401, "{}")
            return self.answer(200, json.dumps({"data": [{"id": name} for name in here.models]}))

        def do_POST(self) -> None:
            here.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            answer = here.answers.pop(0) if here.answers else WHOLE
            if isinstance(answer, str):
                return self.answer(200, answer)
            return self.answer(answer, json.dumps({"error": {"code": f"code_{answer}"}}))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Door(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield here
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def replay(trace: str, **options: object) -> str:
    output = io.StringIO()
    call_command("replay", trace, **({"key": KEY, "speed": 1000.0} | options), stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_refusals_are_reported_apart_from_success(door: Door, trace: str) -> None:
    door.answers = [429, 503, 503]
    report = json.loads(replay(trace, url=door.url + "/v1", json=True, in_flight=1))
    assert (report["sent"], report["succeeded"], report["limited_429"], report["unavailable_503"]) == (6, 3, 1, 2)
    assert report["failed"] == 0
    assert (report["input_tokens"], report["output_tokens"]) == (27, 6)
    assert report["ttft_p50_ms"] > 0
    assert report["tpot_p50_ms"] is not None
    assert all(body["stream"] and body["max_tokens"] == 3 and body["model"] == "tiny" for body in door.bodies)


def test_failures_are_named_and_end_with_status_1(door: Door, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    door.answers = [500, CHUNK, CHUNK + 'data: {"error":{"code":"upstream_error"}}\n\n', "data: nonsense\n\n"]
    output = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("replay", trace, url=door.url, key=KEY, speed=1000.0, in_flight=1, stdout=output)
    assert ended.value.code == 1
    text = output.getvalue()
    for reason in (
        "500 code_500",
        "the stream ended without [DONE]",
        "error in the stream: upstream_error",
        "an event that is not JSON",
    ):
        assert f"1 x {reason}" in text
    assert "failures              4" in text
    assert "success               2" in text


def test_it_can_be_interrupted_also_where_a_shell_had_that_ignored(door: Door, trace: str) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        replay(trace, url=door.url)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_asks_for_the_model_that_was_named(door: Door, trace: str) -> None:
    door.models = ["tiny", "large"]
    replay(trace, url=door.url, model="large", limit=2)
    assert [body["model"] for body in door.bodies] == ["large", "large"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "sk-gh-wrong"}, r"refuses the API key \(401\)"),
        ({"key": "sk-gh\n"}, "characters that no key has"),
        ({"model": "huge"}, "may not use the model huge; it may use tiny"),
        ({"url": "localhost:8080"}, "is not an address"),
        ({"url": "http://localhost:99999999"}, "is not an address"),
        ({"limit": 0}, "--limit must be between 1"),
        ({"speed": 0.0}, "--speed must be above 0"),
    ],
)
def test_says_what_is_in_the_way(door: Door, trace: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        replay(trace, **({"url": door.url} | options))


def test_says_that_no_model_is_granted(door: Door, trace: str) -> None:
    door.models = []
    with pytest.raises(CommandError, match="may use no model"):
        replay(trace, url=door.url)


def test_says_that_nothing_listens(trace: str) -> None:
    with pytest.raises(CommandError, match="nothing answers at 127"):
        replay(trace, url=f"http://127.0.0.1:{free_port()}")


def test_says_that_the_file_is_missing(door: Door, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no file"):
        replay(str(tmp_path / "none.csv.gz"), url=door.url)


def test_takes_the_key_from_the_environment(door: Door, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEHOUSE_API_KEY", raising=False)
    with pytest.raises(CommandError, match="no API key"):
        replay(trace, url=door.url, key=None)
    monkeypatch.setenv("GATEHOUSE_API_KEY", KEY)
    assert "success               6" in replay(trace, url=door.url, key=None)

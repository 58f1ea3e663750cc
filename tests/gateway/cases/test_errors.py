"""Errors of engines and of the gateway: whose they are, in the shape that the client knows (G22, G23)."""

import json
from typing import Any, Final

import pytest

from tests.doubles.engine import DONE, Script, answers, chunk, event, streams
from tests.gateway.cases.desk import CHAT, MESSAGES, RESPONSES, SERVED, Case

PATHS: Final = (CHAT, MESSAGES)  # OpenAI's envelope and Anthropic's


def _busy(status: int, *retry_after: str) -> Script:
    headers = [("Retry-After", value) for value in retry_after]
    return answers({"error": {"message": "busy", "type": "e"}}, status=status, headers=headers)


@pytest.mark.shows("G22")
@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (429, ("7",), "7"),
        (429, (), "1"),
        (429, ("Wed, 21 Oct 2026 07:28:00 GMT",), "1"),
        (429, ("-3",), "1"),
        (503, ("7",), "7"),
        (503, (), "1"),
    ],
    ids=["seconds", "nothing", "a date", "nonsense", "503 with seconds", "503 with nothing"],
)
def test_g22_an_engines_retry_after_passes_or_is_made_up(
    case: Case, status: int, said: tuple[str, ...], told: str
) -> None:
    served = case.serve(_busy(status, *said), endpoints=2)
    answer = case.ask(served.name)
    assert (answer.status, answer.headers["retry-after"]) == (status, told)
    assert answer.error["code"] == {429: "engine_rate_limited", 503: "engine_unavailable"}[status]
    assert len(served.received) == 2


@pytest.mark.shows("G22")
@pytest.mark.parametrize("path", PATHS)
def test_g22_the_engines_429_and_ours_differ(case: Case, path: str) -> None:
    key = case.house.new_key("one a minute", rpm_limit=1)
    served = case.serve(_busy(429, "7"))
    engines, ours = (case.ask(served.name, path, key=key) for _ in range(2))
    assert [engines.status, ours.status] == [429, 429]
    assert engines.headers["retry-after"] == "7"
    assert 1 <= int(ours.headers["retry-after"]) <= 61
    assert engines.error["message"] == "busy"
    assert "limit 1, used 1" in ours.error["message"]
    if path != MESSAGES:
        assert [engines.error["code"], ours.error["code"]] == ["engine_rate_limited", "rate_limit_exceeded"]
    assert case.row(engines).error_code == "engine_rate_limited"
    assert len(served.received) == 1


def _is_in_shape(path: str, told: Any) -> dict[str, Any]:
    """The error of an envelope, of which there is one and nothing beside it."""
    error: dict[str, Any] = told["error"]
    if path == MESSAGES:
        assert told["type"] == "error"
        assert set(told) == {"type", "error", "request_id"}
        assert set(error) == {"type", "message"}
    else:
        assert set(told) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    return error


SHAPES: Final[dict[str, Any]] = {
    "OpenAI's": {"error": {"message": f"{SERVED} is full", "type": "BadRequestError", "param": "n", "code": "x"}},
    "an older vLLM's": {"object": "error", "message": f"{SERVED} is full", "type": "BadRequestError", "code": 400},
    "FastAPI's": {"detail": f"{SERVED} is full"},
    "TGI's": {"error": f"{SERVED} is full", "error_type": "validation"},
}
ANTHROPICS: Final = {
    400: "invalid_request_error",
    404: "not_found_error",
    422: "invalid_request_error",
    500: "api_error",
    503: "overloaded_error",
}


@pytest.mark.shows("G23")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_g23_an_error_of_any_shape_comes_in_one_envelope(case: Case, path: str, shape: str) -> None:
    served = case.serve(answers(SHAPES[shape], status=400), endpoints=2)
    answer = case.ask(served.name, path)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    error = _is_in_shape(path, answer.json)
    assert error["message"] == f"{served.name} is full"
    if path == MESSAGES:
        assert error["type"] == "invalid_request_error"
    elif shape == "OpenAI's":
        assert error == {**SHAPES[shape]["error"], "message": f"{served.name} is full"}
    assert len(served.received) == 1  # a client's mistake is the same everywhere
    row = case.row(answer)
    assert (row.outcome, row.status, row.usage_source) == ("failed", 400, "none")


@pytest.mark.shows("G23")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", ANTHROPICS)
def test_g23_its_status_is_kept(case: Case, path: str, status: int) -> None:
    served = case.serve(answers({"error": {"message": "no", "type": "e", "code": "c"}}, status=status))
    answer = case.ask(served.name, path)
    assert answer.status == status
    error = _is_in_shape(path, answer.json)
    assert error["message"] == "no"
    if path == MESSAGES:
        assert error["type"] == ANTHROPICS[status]


@pytest.mark.shows("G23")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("status", "body"), [(500, b"Traceback: /srv/secret"), (302, b""), (401, b'{"error": "key"}')])
def test_g23_what_is_no_error_of_the_clients_is_ours(case: Case, path: str, status: int, body: bytes) -> None:
    served = case.serve(answers(body, status=status, content_type="text/plain"))
    answer = case.ask(served.name, path)
    assert answer.status == 502
    assert _is_in_shape(path, answer.json)["message"] == "The model's engine failed to answer."


@pytest.mark.shows("G23")
@pytest.mark.parametrize("path", PATHS)
def test_g23_an_error_in_a_stream_is_in_the_same_envelope(streamed: Case, path: str) -> None:
    said = json.dumps({"error": {"message": f"{SERVED} broke", "type": "e", "code": 500}}).encode()
    served = streamed.serve(streams(chunk(role=True), chunk("A"), event(said), DONE))
    answer = streamed.ask(served.name, path)
    assert _is_in_shape(path, answer.events[-1])["message"] == f"{served.name} broke"
    if path == MESSAGES:
        assert b"\nevent: error\ndata: " in answer.body
        assert b"message_stop" not in answer.body


@pytest.mark.shows("G23")
def test_g23_errors_of_responses_are_openais(case: Case) -> None:
    served = case.serve(answers(SHAPES["OpenAI's"], status=422))
    answer = case.ask(served.name, RESPONSES)
    assert answer.status == 422
    assert _is_in_shape(RESPONSES, answer.json) == {**SHAPES["OpenAI's"]["error"], "message": f"{served.name} is full"}


@pytest.mark.shows("G23")
def test_g23_an_error_in_a_stream_of_responses_is_its_own_event(streamed: Case) -> None:
    said = json.dumps({"error": {"message": f"{SERVED} broke", "type": "e", "code": 500}}).encode()
    served = streamed.serve(streams(chunk(role=True), chunk("A"), event(said), DONE))
    answer = streamed.ask(served.name, RESPONSES)
    told = answer.events[-1]
    assert (told["type"], told["message"]) == ("error", f"{served.name} broke")
    assert told["sequence_number"] == len(answer.events) - 1
    assert b"response.completed" not in answer.body
    assert SERVED.encode() not in answer.body

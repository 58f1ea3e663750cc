"""Engines' errors in our envelope."""

import json

import pytest

from core.errors import NotSupported, UpstreamFailure, UpstreamTimeout, error_headers, render_openai
from gateway.relay.engine_errors import error_of_answer, error_of_event, error_of_transport
from gateway.relay.upstream_errors import ConnectionLost, DeadlinePassed, Phase


def rendered(status: int, body: bytes, *, served: str = "served", retry_after: bytes | None = None) -> tuple[int, str]:
    error = error_of_answer(status, body, retry_after=retry_after, served_name=served, client_model="alias")
    told = json.loads(render_openai(error))["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return error.status, told["message"]


@pytest.mark.shows("G24")
@pytest.mark.parametrize(
    ("served", "said", "told"),
    [
        ("served", "The model `served` does not exist", "The model `alias` does not exist"),
        ("/models/a.gguf", "no /models/a.gguf here", "no alias here"),
        ("m", "my model m is m.", "my model alias is alias."),
        ("", "nothing", "nothing"),
    ],
)
def test_the_engines_name_of_the_model_stays_inside(served: str, said: str, told: str) -> None:
    assert rendered(404, json.dumps({"error": {"message": said}}).encode(), served=served) == (404, told)


@pytest.mark.parametrize("status", [204, 301, 401, 403, 407, 500, 501, 502, 504])
def test_what_is_no_matter_of_the_clients_is_a_failure_of_ours(status: int) -> None:
    assert rendered(status, b"internal words") == (502, UpstreamFailure.default_message)


@pytest.mark.shows("G22")
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (None, 1.0),
        (b"12", 12.0),
        (b" 3 ", 3.0),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        (b"-5", 1.0),
        (b"9" * 400, 86_400.0),
    ],
)
def test_back_pressure_says_when_to_come_again(retry_after: bytes | None, seconds: float) -> None:
    for status in (429, 503):
        error = error_of_answer(status, b"", retry_after=retry_after, served_name="s", client_model="a")
        assert (error.status, error.retry_after_seconds) == (status, seconds)
        assert (b"retry-after", b"%d" % seconds) in error_headers(error)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),  # vLLM
        (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),  # llama.cpp
        (405, b'{"detail":"Method Not Allowed"}'),
    ],
)
def test_an_engine_without_the_path_does_not_support_what_was_asked(status: int, body: bytes) -> None:
    error = error_of_answer(status, body, retry_after=None, served_name="s", client_model="a")
    assert (error.status, error.code, error.message) == (400, "unsupported_by_model", NotSupported.default_message)


@pytest.mark.parametrize(("said", "told"), [("body.top_p", "top_p"), ("max_tokens", "max_tokens"), ("body.", None)])
def test_a_param_is_named_as_in_the_body(said: str, told: str | None) -> None:
    body = json.dumps({"error": {"message": "m", "param": said}}).encode()
    assert error_of_answer(400, body, retry_after=None, served_name="s", client_model="a").param == told


def test_messages_are_bounded() -> None:
    assert len(rendered(400, json.dumps({"error": "x" * 100_000}).encode())[1]) == 2000


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b'{"error": {"message": "m", "code": 400}}', 400),
        (b'{"error": {"message": "m", "code": 503}}', 503),
        (b'{"error": {"message": "m", "code": "odd"}}', 500),
        (b'{"error": {"message": "m", "code": 200}}', 500),
        (b'{"message": "m"}', 500),
        (b"plain words", 502),
    ],
)
def test_events_have_their_status_in_their_code(data: bytes, status: int) -> None:
    assert error_of_event(data, served_name="s", client_model="a").status == status


def test_no_answer_at_all() -> None:
    assert isinstance(error_of_transport(DeadlinePassed(Phase.HEAD)), UpstreamTimeout)
    assert type(error_of_transport(ConnectionLost("gone"))) is UpstreamFailure

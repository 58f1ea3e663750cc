"""Bad input is told in OpenAI's shape, names its field, and gives nothing away."""

import json
import socket
from collections.abc import Mapping
from typing import Any

import httpx2 as httpx
import pytest

from bench.house import wait_until
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tenants.services import revoke_api_key
from tests.house import TestHouse

CHAT = "/v1/chat/completions"
BODY: Mapping[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
_CHANGING = {"date", "x-request-id"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must be in OpenAI's shape."""
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


def seen_alike(response: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """What must be equal when two answers may not be told apart."""
    headers = sorted((name, value) for name, value in response.headers.items() if name not in _CHANGING)
    return response.status_code, response.content, headers


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models"])
def test_missing_and_wrong_key(house: TestHouse, path: str) -> None:
    method = "GET" if path.endswith("models") else "POST"
    for secret, code in (("", "missing_api_key"), ("sk-gh-" + "x" * 43, "invalid_api_key"), ("?", "invalid_api_key")):
        with house.client(secret) as client:
            response = client.request(method, path, json=None if method == "GET" else BODY)
        assert response.status_code == 401
        assert error_of(response)["code"] == code
        assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("seconds", [pytest.param(1.0, marks=pytest.mark.drill), 30.0])
def test_revoked_key_is_refused_within_a_second_like_an_unknown_one(house: TestHouse, seconds: float) -> None:
    """A machine on which all other tests run too keeps no second: it is the drill's to measure."""
    key = house.new_key("to revoke")
    with house.client(key.secret) as client, house.client("sk-gh-" + "y" * 43) as stranger:
        assert client.post(CHAT, json=BODY).status_code == 200
        revoke_api_key(key.id, actor=SYSTEM)
        wait_until(lambda: client.get("/v1/models").status_code == 401, "the revoked key is refused", seconds=seconds)
        assert seen_alike(client.post(CHAT, json=BODY)) == seen_alike(stranger.post(CHAT, json=BODY))
        assert seen_alike(client.get("/v1/models")) == seen_alike(stranger.get("/v1/models"))


@pytest.mark.shows("G31")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_unknown_model_and_one_without_a_grant_are_the_same_bytes(house: TestHouse, path: str) -> None:
    with house.client() as client:
        unknown, hidden = (client.post(path, json={**BODY, "prompt": "a", "model": m}) for m in ("absent", "hidden"))
        assert unknown.status_code == 404
        assert error_of(unknown)["code"] == "model_not_found"
        assert seen_alike(unknown) == seen_alike(hidden)
        assert seen_alike(client.get("/v1/models/absent")) == seen_alike(client.get("/v1/models/hidden"))
        assert "hidden" not in client.get("/v1/models").text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b'{"model": "tiny", "messages": [', None),
        (CHAT, b"", None),
        (CHAT, b"[]", None),
        (CHAT, b'"tiny"', None),
        (CHAT, b'{"model": "tiny", "messages": "\xff"}', None),
        (CHAT, {"messages": BODY["messages"]}, "model"),
        (CHAT, {**BODY, "model": 7}, "model"),
        (CHAT, {**BODY, "model": ""}, "model"),
        (CHAT, {"model": "tiny"}, "messages"),
        (CHAT, {**BODY, "messages": []}, "messages"),
        (CHAT, {**BODY, "messages": "Hello"}, "messages"),
        (CHAT, {**BODY, "messages": None}, "messages"),
        (CHAT, {**BODY, "messages": ["Hello"]}, "messages[0]"),
        (CHAT, {**BODY, "messages": [{"content": "Hello"}]}, "messages[0].role"),
        (CHAT, {**BODY, "stream": "yes"}, "stream"),
        (CHAT, {**BODY, "max_tokens": "many"}, "max_tokens"),
        (CHAT, {**BODY, "max_tokens": -1}, "max_tokens"),
        (CHAT, {**BODY, "n": 0}, "n"),
        (CHAT, {**BODY, "n": 1.5}, "n"),
        (CHAT, {**BODY, "stream_options": "all"}, "stream_options"),
        (CHAT, b'{"model": "tiny", "model": "hidden", "messages": [{"role": "user", "content": "a"}]}', "model"),
        ("/v1/completions", {"model": "tiny"}, "prompt"),
        ("/v1/completions", {"model": "tiny", "prompt": 7}, "prompt"),
    ],
)
def test_a_wrong_body_is_told_with_its_field(
    house: TestHouse, path: str, body: bytes | dict[str, Any], param: str | None
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with house.client() as client:
        response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if param:
        assert param in error["message"]


def test_a_body_over_the_cap_is_refused_before_it_is_read(house: TestHouse) -> None:
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "host: a",
        f"authorization: Bearer {house.key.secret}",
        "content-length: 99999999",
    ]
    with socket.create_connection(("127.0.0.1", house.relay_port), timeout=10) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 413 ")
    assert '"code":"request_too_large"' in answer


def test_a_chunked_body_over_the_cap_is_refused(house: TestHouse) -> None:
    with house.client() as client:
        response = client.post(CHAT, content=(b" " * 1_000_000 for _ in range(34)))
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
    ],
)
def test_other_methods_and_addresses(house: TestHouse, method: str, path: str, status: int, code: str) -> None:
    with house.client() as client:
        response = client.request(method, path)
    assert response.status_code == status
    assert error_of(response)["code"] == code


def test_no_ready_instance_is_503_with_retry_after(house: TestHouse) -> None:
    with house.client() as client:
        response = client.post(CHAT, json={**BODY, "model": "idle"})
    assert response.status_code == 503
    assert error_of(response)["code"] == "no_ready_instance"
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_over_the_limit_is_429_with_retry_after(house: TestHouse, stream: bool) -> None:
    key = house.new_key(f"limited {stream}", rpm_limit=3)
    with house.client(key.secret) as client:
        statuses = [client.post(CHAT, json={**BODY, "stream": stream}).status_code for _ in range(3)]
        refused = client.post(CHAT, json={**BODY, "stream": stream})
    assert statuses == [200, 200, 200]
    assert refused.status_code == 429
    assert error_of(refused)["code"] == "rate_limit_exceeded"
    assert error_of(refused)["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 61


def test_refusals_are_no_ledger_rows(house: TestHouse) -> None:
    with house.client() as client:
        refused = [
            client.post(CHAT, json={**BODY, "model": "absent"}),
            client.post(CHAT, json={**BODY, "model": "idle"}),
            client.post(CHAT, json={**BODY, "messages": []}),
        ]
        served = client.post(CHAT, json=BODY)
    house.ledger_row(served.headers["x-request-id"])  # what came before it is there by now, if ever
    assert not UsageRecord.objects.filter(pk__in=[r.headers["x-request-id"] for r in refused]).exists()

"""What an engine is told in a request's head."""

from typing import Any

import pytest

from core.ids import uuid7
from gateway.relay.plan import Api, Endpoint, SlimRequest, TrafficClass
from gateway.relay.request_head import request_head

REQUEST_ID = uuid7()


def lines(
    *headers: tuple[bytes, bytes],
    host: str = "engine",
    base_path: str = "",
    authorization: str | None = None,
    traffic_class: TrafficClass = TrafficClass.STANDARD,
) -> list[str]:
    request = SlimRequest(REQUEST_ID, Api.CHAT, "/v1/chat/completions", headers, b"{}", 0.0, traffic_class)
    endpoint = Endpoint(uuid7(), uuid7(), "vllm", host, 8000, base_path, "served", authorization)
    head = request_head(
        request, endpoint, method="POST", path=request.path, stream=True, body_bytes=2, seconds_left=1.5
    )
    assert head.endswith(b"\r\n\r\n")
    return head.decode().split("\r\n")


def test_it_is_whole() -> None:
    assert lines(base_path="/engine", authorization="Bearer k") == [
        "POST /engine/v1/chat/completions HTTP/1.1",
        "host: engine:8000",
        "user-agent: gatehouse",
        "accept-encoding: identity",
        "content-type: application/json",
        "authorization: Bearer k",
        "accept: text/event-stream",
        f"x-request-id: {REQUEST_ID}",
        "x-request-deadline-ms: 1500",
        "content-length: 2",
        "",
        "",
    ]


def test_addresses_of_version_6_are_bracketed() -> None:
    assert "host: [::1]:8000" in lines(host="::1")


@pytest.mark.shows("G26")
@pytest.mark.parametrize("name", [b"authorization", b"cookie", b"x-forwarded-for", b"x-user-id", b"te", b"connection"])
def test_nothing_of_the_clients_passes_by_default(name: bytes) -> None:
    assert lines((name, b"canary")) == lines()


def test_trace_context_passes_when_it_is_one() -> None:
    good = (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    assert f"traceparent: {good[1].decode()}" in lines(good, (b"tracestate", b"a=1"))
    assert lines((b"traceparent", b"canary"), (b"tracestate", b"x" * 600)) == lines()


@pytest.mark.parametrize("bad", [{"host": "a b"}, {"base_path": "/a\r\nx: y"}, {"authorization": "k\r\nx: y"}])
def test_an_endpoint_cannot_add_lines(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        lines(**bad)


@pytest.mark.parametrize(("traffic_class", "told"), [(TrafficClass.REALTIME, "p0"), (TrafficClass.BACKGROUND, "p2")])
def test_only_unusual_urgency_is_told(traffic_class: TrafficClass, told: str) -> None:
    assert set(lines(traffic_class=traffic_class)) - set(lines()) == {f"x-gatehouse-class: {told}"}
    assert lines((b"x-gatehouse-class", b"p0")) == lines()

"""What log lines say of the request that they are about."""

from uuid import uuid4

import pytest
import structlog

from core.ids import uuid7
from gateway.relay.context import logged_as, trace_id
from gateway.relay.plan import Api, SlimRequest
from tenants.principal import Principal

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (TRACE, "4bf92f3577b34da6a3ce929d0e0e4736"),
        (TRACE.upper(), None),
        (TRACE[:-3], None),
        (b"00-not-a-trace", None),
        (b"\xff" * 60, None),
        (b"", None),
    ],
)
def test_a_trace_id_is_read_where_there_is_a_right_one(value: bytes, found: str | None) -> None:
    assert trace_id([(b"host", b"a"), (b"traceparent", value)]) == found
    assert trace_id([]) is None


def test_what_is_known_is_bound_inside_and_gone_outside() -> None:
    request = SlimRequest(uuid7(), Api.CHAT, "/v1/chat/completions", [(b"traceparent", TRACE)], b"", 0.0)
    principal = Principal(uuid4(), "acme", uuid4(), frozenset(), (), None)
    with logged_as(request, principal):
        assert structlog.contextvars.get_contextvars() == {
            "request_id": str(request.request_id),
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "tenant": "acme",
            "key_id": str(principal.key_id),
        }
    with logged_as(None):
        assert structlog.contextvars.get_contextvars() == {}

"""Headers: an allow-list both ways, and who asks is known from the key alone (G26)."""

import json
from typing import Final

import pytest

from tests.doubles.engine import answers, chat_stream, completion
from tests.gateway.cases.desk import CHAT, ENGINE_KEY, ENGINE_KEY_VARIABLE, MESSAGES, RESPONSES, SERVED, Case

TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CLAIMS: Final = {
    "cookie": "session=a-claim",
    "proxy-authorization": "Basic a-claim",
    "x-forwarded-for": "203.0.113.5",
    "forwarded": "for=203.0.113.5",
    "x-real-ip": "203.0.113.5",
    "x-user-id": "a-claim",
    "x-tenant": "a-claim",
    "x-gatehouse-class": "p0",
    "x-gatehouse-tenant": "a-claim",
    "x-request-id": "a-claim",
    "x-request-deadline-ms": "1",
    "openai-organization": "a-claim",
    "connection": "keep-alive, x-hop",
    "x-hop": "a-claim",
    "te": "trailers",
    "upgrade": "a-claim",
    "accept-encoding": "br",
    "accept": "text/plain",
    "user-agent": "a-claim",
    "traceparent": TRACE,
    "tracestate": "vendor=1",
}
TO_ENGINES: Final = {
    "host",
    "user-agent",
    "accept",
    "accept-encoding",
    "content-type",
    "content-length",
    "x-request-id",
    "x-request-deadline-ms",
    "x-gatehouse-class",
    "traceparent",
    "tracestate",
}


@pytest.mark.shows("G26")
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("credential", ["", ENGINE_KEY_VARIABLE], ids=["open engine", "engine with a key"])
def test_g26_nothing_of_the_client_but_its_trace_reaches_the_engine(case: Case, path: str, credential: str) -> None:
    served = case.serve(case.says("A"), credential=credential)
    claims = {**CLAIMS, "x-api-key": case.house.key.secret}
    answer = case.ask(served.name, path, headers=claims)
    assert answer.status == 200, answer.body
    (request,) = served.received
    names = [name for name, _ in request.headers]
    assert sorted(names) == sorted(TO_ENGINES | ({"authorization"} if credential else set()))
    assert request.header("authorization") == (f"Bearer {ENGINE_KEY}" if credential else None)
    assert request.header("traceparent") == TRACE
    assert request.header("x-request-id") == answer.request_id
    assert request.header("x-gatehouse-class") == "p2"  # as the tenant's tier has it
    assert request.header("accept-encoding") == "identity"
    told = repr(request)
    for secret in (case.house.key.secret, "a-claim", "203.0.113.5"):
        assert secret not in told


@pytest.mark.shows("G26")
def test_g26_who_asks_is_known_from_the_key_alone(case: Case) -> None:
    limited = case.house.new_key("one a minute", rpm_limit=1)
    served = case.serve(case.says("A"))
    claimed = [
        case.ask(
            served.name, key=limited, headers={"x-tenant": str(number), "x-user-id": str(number)}, user=str(number)
        )
        for number in range(2)
    ]
    assert [answer.status for answer in claimed] == [200, 429]
    row = case.row(claimed[0])
    assert (row.tenant_id, row.key_id) == (case.house.tenant.pk, limited.id)


@pytest.mark.shows("G26")
@pytest.mark.parametrize("status", [200, 400])
def test_g26_nothing_of_the_engine_comes_back_by_default(case: Case, status: int) -> None:
    theirs = [
        ("Set-Cookie", "a=b"),
        ("Server", "engine/1"),
        ("X-Internal", "10.1.2.3"),
        ("Keep-Alive", "timeout=5"),
        ("Access-Control-Allow-Origin", "*"),
        ("X-Request-Id", "theirs"),
        ("X-RateLimit-Remaining-Requests", "99"),
    ]
    kind = "application/json"
    body = json.dumps(completion(model=SERVED) if status == 200 else {"error": {"message": "no"}}).encode()
    if case.streamed and status == 200:
        kind, body = "text/event-stream", b"".join(chat_stream("A", model=SERVED))
    talkative, quiet = (answers(body, status=status, content_type=kind, headers=more) for more in (theirs, []))
    served = case.serve(talkative, quiet)
    told, expected = case.ask(served.name), case.ask(served.name)
    assert told.status == status
    assert set(told.headers) == set(expected.headers)
    assert not {value for _, value in theirs} & set(told.headers.values())

"""Relay and DRF door, as real processes on a real engine: the same request gets the same answer from both.

Compared: status, body bytes (ids and times masked) and the agreed set of headers; and what the ledger says.
"""

import gzip
import json
import re
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from django.utils import timezone

from bench.house import wait_until
from gateway.relay.routes import INFERENCE
from tenants.actor import SYSTEM
from tenants.models import RefusalMinute, Tenant, TenantState, UsageRecord
from tenants.reads.refusals import refusals_by_reason
from tenants.services import set_tenant_state
from tests.gateway.two_doors import CHAT, COMPLETIONS, GREEDY, MESSAGES, VALID, Ask, Doors, chat, comparable
from tests.gateway.two_doors import doors as doors
from tests.gateway.two_doors import house_more as house_more

EMBEDDINGS: Final = "/v1/embeddings"
EMBED: Final = {"model": "tiny", "input": "a"}
RERANK: Final = {"model": "tiny", "query": "a", "documents": ["b"]}


def messages(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 4, "temperature": 0, "messages": MESSAGES, **more}


def responses(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_output_tokens": 4, "temperature": 0, "input": "Hello", **more}


ASKS: Final = (
    Ask("models", "/v1/models", "GET"),
    Ask("models by HEAD", "/v1/models", "HEAD"),
    Ask("one model", "/v1/models/tiny", "GET"),
    Ask("a model that is not granted", "/v1/models/hidden", "GET", status=404),
    Ask("a model that is not", "/v1/models/nothing", "GET", status=404),
    Ask("models without a key", "/v1/models", "GET", key="", status=401),
    Ask("chat", body=chat()),
    Ask("chat, streamed", body=chat(stream=True)),
    Ask("chat, streamed with usage", body=chat(stream=True, stream_options={"include_usage": True})),
    Ask("chat, null options", body=chat(stream=True, stream_options=None)),
    Ask("completion", COMPLETIONS, body={**GREEDY, "prompt": "Once"}),
    Ask("completion, streamed", COMPLETIONS, body={**GREEDY, "prompt": "Once", "stream": True}),
    Ask("no key", body=chat(), key="", status=401),
    Ask("a key that is not", body=chat(), key="sk-gh-nothing", status=401),
    Ask("a revoked key", body=chat(), key="revoked", status=401),
    Ask("another scheme", body=chat(), headers={"authorization": "Basic abc"}, key="", status=401),
    Ask("a key without the scope", body=chat(), key="unscoped", status=403),
    Ask("an unknown model", body=chat(model="nothing"), status=404),
    Ask("a model without a grant", body=chat(model="hidden"), status=404),
    Ask("no ready instance", body=chat(model="idle"), status=503),
    Ask("broken JSON", body=b'{"model": "tiny", ', status=400),
    Ask("not an object", body=b"[1]", status=400),
    Ask("an empty body", body=b"", status=400),
    Ask("not UTF-8", body=b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}', status=400),
    Ask("a member twice", body=b'{"model": "tiny", "model": "hidden", "messages": [{}]}', status=400),
    Ask("no messages", body={"model": "tiny", "messages": []}, status=400),
    Ask("messages missing", body={"model": "tiny"}, status=400),
    Ask("a model of the wrong type", body=chat(model=1), status=400),
    Ask("stream of the wrong type", body=chat(stream="yes"), status=400),
    Ask("max_tokens of the wrong type", body=chat(max_tokens="4"), status=400),
    Ask("a message that is none", body=chat(messages=["x"]), status=400),
    Ask("a message without a role", body=chat(messages=[{"content": "x"}]), status=400),
    Ask("an error of the engine's own", body=chat(messages=[{"role": "user", "content": 5}]), status=400),
    Ask("a body over the cap", body=b" " * (2 * 1024 * 1024), status=413),
    Ask("the wrong method", CHAT, "GET", status=405),
    Ask("the wrong method on models", "/v1/models", "POST", body=b"{}", status=405),
    Ask("an unknown address", "/v1/nothing", "GET", status=404),
    Ask("an unknown address, posted to", "/v1/embeddingz", body=b"{}", key="", status=404),
    Ask("no model's name", "/v1/models/", "GET", status=404),
    Ask("a compressed body", body=gzip.compress(json.dumps(chat()).encode()), headers={"content-encoding": "gzip"}),
    Ask("a bomb", body=gzip.compress(b" " * 2**21), headers={"content-encoding": "gzip"}, status=413),
    Ask("an unknown encoding", body=b"{}", headers={"content-encoding": "zip"}, status=415),
    Ask("two encodings", body=b"{}", headers=[("content-encoding", "gzip"), ("content-encoding", "gzip")], status=415),
    Ask("two keys", body=chat(), headers=[("authorization", "Bearer sk-gh-other")], status=401),
    Ask("options", CHAT, "OPTIONS", key="", status=204),
    Ask("tokens of a text", "/tokenize", body={"model": "tiny", "prompt": "Once upon"}),
    Ask("embeddings that the engine was not started for", EMBEDDINGS, body={"model": "tiny", "input": "a"}, status=501),
    Ask("embeddings by a key without the scope", EMBEDDINGS, body=EMBED, key="infer only", status=403),
    Ask("rerank by a key without the scope", "/v1/rerank", body=RERANK, key="infer only", status=403),
    Ask("messages", "/v1/messages", body=messages()),
    Ask("messages, streamed", "/v1/messages", body=messages(stream=True)),
    Ask("messages by Anthropic's header", "/v1/messages", body=messages(), key="", headers=[("x-api-key", VALID)]),
    Ask("messages without a key", "/v1/messages", body=messages(), key="", status=401),
    Ask("messages of an unknown model", "/v1/messages", body=messages(model="nothing"), status=404),
    Ask("messages without a bound", "/v1/messages", body={"model": "tiny", "messages": MESSAGES}, status=400),
    Ask("messages by the wrong method", "/v1/messages", "GET", status=405),
    Ask("messages over the cap", "/v1/messages", body=b" " * (2 * 1024 * 1024), status=413),
    Ask("messages, counted", "/v1/messages/count_tokens", body={"model": "tiny", "messages": MESSAGES}),
    Ask("counting without a key", "/v1/messages/count_tokens", body={}, key="", status=401),
    Ask("a response", "/v1/responses", body=responses()),
    Ask("a response, streamed", "/v1/responses", body=responses(stream=True)),
    Ask("a response to nothing", "/v1/responses", body={"model": "tiny"}, status=400),
    Ask("a response without a key", "/v1/responses", body=responses(), key="", status=401),
    Ask("alive", "/healthz", "GET", key=""),
    Ask("ready", "/readyz", "GET", key=""),
)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
def test_both_doors_answer_alike(doors: Doors, ask: Ask) -> None:
    relay, web = doors.send("relay", ask), doors.send("web", ask)
    assert relay.status_code == ask.status, relay.text
    assert comparable(web) == comparable(relay)


@pytest.mark.parametrize("path", ["/v1/models", CHAT])
def test_every_answer_has_a_request_id(doors: Doors, path: str) -> None:
    for door in ("relay", "web"):
        for key, method in (("valid", "GET" if path == "/v1/models" else "POST"), ("", "POST"), ("", "OPTIONS")):
            ask = Ask("x", path, method, chat(), key=key)
            assert UUID(doors.send(door, ask).headers["x-request-id"]).version == 7


def test_both_doors_count_one_limit(doors: Doors) -> None:
    key = doors.house.new_key("three a minute", rpm_limit=3).secret
    asks = [doors.send(door, Ask("x", body=chat(), key=key)) for door in ("relay", "web", "relay")]
    assert [r.status_code for r in asks] == [200, 200, 200]
    assert [r.headers["x-ratelimit-remaining-requests"] for r in asks] == ["2", "1", "0"]
    refused = [doors.send(door, Ask("x", body=chat(), key=key)) for door in ("relay", "web")]
    assert [r.status_code for r in refused] == [429, 429]
    for response in refused:
        message = response.json()["error"]["message"]
        assert "limit 3, used 3, reserved 0, requested 1, reset in" in message
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(response.headers["retry-after"]) <= 61


@pytest.mark.parametrize("body", [chat(), chat(stream=True)], ids=["whole", "streamed"])
def test_both_doors_write_the_same_row(doors: Doors, body: dict[str, Any]) -> None:
    rows: dict[str, UsageRecord] = {}
    for door in ("relay", "web"):
        response = doors.send(door, Ask("x", body=body))
        rows[door] = doors.house.ledger_row(response.headers["x-request-id"])
    assert (rows["relay"].door, rows["web"].door) == ("relay", "drf")
    same = ("tenant_id", "key_id", "model", "version_id", "instance_id", "api", "streamed", "outcome", "status")
    tokens = ("usage_source", "input_tokens", "output_tokens")

    def told(row: UsageRecord) -> dict[str, Any]:
        return {name: getattr(row, name) for name in same + tokens}

    assert told(rows["relay"]) == told(rows["web"])
    assert rows["web"].usage_source == "engine"
    assert rows["web"].duration_ms is not None
    for row in rows.values():  # where the time went is measured at both
        assert row.queue_ms is not None
        assert row.connect_ms is not None
        assert (row.first_decode_ms is not None) == body.get("stream", False)


def test_a_suspended_tenant_is_refused_at_both_doors_within_a_second(doors: Doors) -> None:
    tenant: Tenant = doors.house.tenant
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    try:
        doors.wait_for_models(403)
        assert comparable(doors.send("web", Ask("x", body=chat()))) == comparable(
            doors.send("relay", Ask("x", body=chat()))
        )
    finally:
        set_tenant_state(tenant.pk, TenantState.ACTIVE, actor=SYSTEM)
    doors.wait_for_models(200)


def test_both_doors_count_what_they_refuse(doors: Doors) -> None:
    def counted(door: str, label: str) -> float:
        text = doors.send(door, Ask("metrics", "/metrics", "GET", key="")).text
        sample = f'gatehouse_refusals_total{{code="invalid_api_key",door="{label}"}}'
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample)), 0.0)

    for door, label in (("relay", "relay"), ("web", "drf")):
        before = counted(door, label)
        doors.send(door, Ask("x", body=chat(), key="sk-gh-nothing"))
        assert counted(door, label) == before + 1


def test_what_both_doors_refused_is_counted_for_its_tenant_and_key(doors: Doors) -> None:
    def counted() -> int:
        reasons = refusals_by_reason(
            since=timezone.now() - timedelta(hours=1),
            until=timezone.now() + timedelta(minutes=1),
            tenant_id=doors.house.tenant.pk,
        )
        return sum(one.refusals for one in reasons if one.model == "idle" and one.status >= 500)

    before = counted()
    for door in ("relay", "web"):
        assert doors.send(door, Ask("x", body=chat(model="idle"))).status_code == 503
    wait_until(lambda: counted() >= before + 2, "both refusals are counted")
    assert not RefusalMinute.objects.filter(model="nothing").exists()  # nobody's model: a client's own word


def test_the_schema_describes_both_apis_without_a_cdn(doors: Doors) -> None:
    with doors.house.client("", door="web") as client:
        schema = client.get("/api/schema", headers={"accept": "application/json"})
        page = client.get("/api/docs")
        script = client.get("/api/docs?script=")
    document = json.loads(schema.content)
    assert document["openapi"].startswith("3.1")
    assert {*INFERENCE, "/v1/models", "/api/tenants/", "/api/tenants/{slug}/keys/"} <= set(document["paths"])
    assert page.status_code == script.status_code == 200
    for text in (page.text, script.text):
        assert not re.findall(r"(?:src|href)=[\"']https?://(?!127\.0\.0\.1)", text)

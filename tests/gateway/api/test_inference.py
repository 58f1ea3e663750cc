"""The DRF door before it is open, and what it says of itself."""

import os
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator

from gateway.api.base import InferenceView
from gateway.api.runtime import install_runtime
from gateway.authentication import MachineAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.routes import INFERENCE
from tests.dashboard.people import person


@pytest.fixture(autouse=True)
def not_started() -> None:
    install_runtime(None)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
def test_before_start_up_it_is_503_in_openais_shape(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer["retry-after"], answer["content-type"]) == (503, "5", "application/json")
    assert answer.json()["error"]["code"] == "service_unavailable"
    assert client.post("/v1/chat/completions", "{}", content_type="application/json").status_code == 503


def test_before_start_up_it_is_alive_but_not_ready(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 503


def test_metrics_are_in_the_text_format(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer["content-type"].startswith("text/plain")
    assert b"gatehouse_snapshot_away" in answer.content


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # the library's
    return generated


@pytest.mark.django_db
def test_the_schema_is_made_without_a_warning() -> None:
    """One would say, for example, that two operations have one name, by which clients are generated."""
    call_command("spectacular", "--fail-on-warn", "--validate", file=os.devnull)


def test_inference_is_described_with_its_key_and_its_refusals(schema: dict[str, Any]) -> None:
    assert schema["openapi"].startswith("3.1")
    chat = schema["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "401", "403", "404", "413", "429", "503"} <= set(chat["responses"])
    assert chat["security"] == [{"gatewayKey": []}, {"gatewayKeyHeader": []}, {"gatewayToken": []}]
    assert schema["components"]["securitySchemes"]["gatewayKey"]["scheme"] == "bearer"
    assert schema["components"]["securitySchemes"]["gatewayKeyHeader"]["name"] == "x-api-key"
    assert "x-ratelimit-limit-requests" in chat["responses"]["429"]["headers"]


@pytest.mark.parametrize("path", INFERENCE)
def test_every_endpoint_is_described_as_the_relay_serves_it(schema: dict[str, Any], path: str) -> None:
    described = schema["paths"][path]["post"]
    assert {"200", "400", "401", "403", "404", "413", "415", "429", "502", "503", "504"} == set(described["responses"])
    assert "$ref" in described["requestBody"]["content"]["application/json"]["schema"]
    shapes = {
        answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for status, answer in described["responses"].items()
        if status != "200"
    }
    assert shapes == {"AnthropicError" if path.startswith("/v1/messages") else "Error"}
    answers = described["responses"]["200"]["content"]
    streamed = path.endswith(("completions", "/responses", "/messages"))
    assert set(answers) == ({"application/json", "text/event-stream"} if streamed else {"application/json"})


@pytest.mark.parametrize("path", INFERENCE)
def test_every_endpoint_is_a_view_with_its_keys_and_rights(path: str) -> None:
    view = resolve(path).func.view_class  # type: ignore[attr-defined]  # Django's as_view sets it
    assert issubclass(view, InferenceView)
    assert view.api is INFERENCE[path]
    assert view.authentication_classes == [MachineAuthentication]
    assert view.permission_classes == [InferencePermission]


@pytest.mark.parametrize("path", INFERENCE)
def test_errors_are_told_in_the_words_of_the_api(client: Client, path: str) -> None:
    refused = client.post(path, "{}", content_type="application/json")
    assert (refused.status_code, refused["retry-after"]) == (503, "5")
    assert (refused.json().get("type") == "error") == path.startswith("/v1/messages")


def test_every_operation_has_a_name_of_its_own(schema: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for path in schema["paths"].values()
        for method, operation in path.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]
    assert len(names) == len(set(names)) > 10


def test_bodies_are_json_and_nothing_else(schema: dict[str, Any], client: Client, db: None) -> None:
    taken = {
        media
        for address, path in schema["paths"].items()
        for operation in path.values()
        for media in operation.get("requestBody", {}).get("content", {})
        # Uploads, as OpenAI has them; and model-card.yaml, taken as the file that people keep.
        if address not in ("/v1/files", "/api/versions/{version_id}/card/")
    }
    assert taken == {"application/json"}
    client.force_login(person("olga", platform_role="operator"))
    refused = client.post("/api/tenants/", {"slug": "a", "name": "A"})
    assert (refused.status_code, refused["content-type"]) == (415, "application/problem+json")


def test_the_control_api_says_how_it_refuses(schema: dict[str, Any]) -> None:
    keys = schema["paths"]["/api/tenants/{slug}/keys/"]
    refusals = {"400", "401", "403", "404", "409", "415"}
    assert {"201"} | refusals == set(keys["post"]["responses"]) - {"422"}  # of an idempotency key
    assert "application/problem+json" in keys["post"]["responses"]["400"]["content"]
    assert "revoked" in {parameter["name"] for parameter in keys["get"]["parameters"]}
    assert schema["components"]["schemas"]["Key"]["properties"]["scopes"]["type"] == "array"
    for name in ("ChatRequest", "CompletionRequest", "Problem"):
        assert name in schema["components"]["schemas"]

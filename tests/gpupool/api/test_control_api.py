"""The pool's control API: platform roles only, tokens once, refusals that name the field."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from gpupool import services
from gpupool.models import Instance, InstanceDesire, InstanceState, Node
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole
from tenants.services import create_user
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.gpupool.api.urls")]


def _client(role: PlatformRole | None) -> APIClient:
    client = APIClient()
    if role is not None:
        user = create_user(email=f"{role or 'none'}@example.org", password=None, platform_role=role, actor=SYSTEM)
        client.force_authenticate(user)
    return client


@pytest.fixture
def operator() -> APIClient:
    return _client(PlatformRole.OPERATOR)


@pytest.mark.parametrize("address", ["models", "versions", "nodes", "instances"])
@pytest.mark.parametrize(
    ("role", "reads", "writes"),
    [
        (None, 401, 401),
        (PlatformRole.NONE, 403, 403),
        (PlatformRole.READ_ONLY, 200, 403),
        (PlatformRole.OPERATOR, 200, 400),
        (PlatformRole.SUPERUSER, 200, 400),
    ],
)
def test_readers_look_and_operators_change(address: str, role: PlatformRole | None, reads: int, writes: int) -> None:
    client = _client(role)
    assert client.get(f"/api/{address}/").status_code == reads
    assert client.post(f"/api/{address}/", {}, format="json").status_code == writes


def test_a_nodes_token_is_told_once(operator: APIClient) -> None:
    created = operator.post("/api/nodes/", {"name": "node-1"}, format="json")
    assert created.status_code == 201
    token = created.json()["token"]
    assert created["cache-control"] == "no-store"
    assert services.authenticate_node(token) == Node.objects.get()
    assert token not in operator.get("/api/nodes/").content.decode()
    assert token not in str(list(AuditEvent.objects.values_list("before", "after")))
    assert token not in str(Node.objects.values().get())


def test_a_rotated_token_replaces_the_old_and_a_revoked_one_is_gone(operator: APIClient) -> None:
    created = operator.post("/api/nodes/", {"name": "node-1"}, format="json").json()
    address = f"/api/nodes/{created['node']['id']}/token/"
    rotated = operator.post(address).json()["token"]
    assert services.authenticate_node(created["token"]) is None
    assert services.authenticate_node(rotated) is not None
    assert operator.delete(address).status_code == 204
    assert services.authenticate_node(rotated) is None


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 121, "node-1"])
def test_a_malformed_or_taken_node_name_is_refused(operator: APIClient, name: str) -> None:
    operator.post("/api/nodes/", {"name": "node-1"}, format="json")
    refused = operator.post("/api/nodes/", {"name": name}, format="json")
    assert refused.status_code == 400
    assert "name" in refused.json()["errors"]


def test_an_engine_is_attached_once(operator: APIClient) -> None:
    body = {"url": "http://10.0.0.5:8000/v1/", "engine": "vllm", "model": "llama"}
    first = operator.post("/api/instances/", body, format="json")
    assert first.status_code == 201
    assert {key: first.json()[key] for key in ("host", "port", "base_path", "state", "attached")} == {
        "host": "10.0.0.5",
        "port": 8000,
        "base_path": "",
        "state": "warming",
        "attached": True,
    }
    again = operator.post("/api/instances/", body, format="json")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "https://"}, "url"),
        ({"url": "host:8000"}, "url"),
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://host:99999"}, "url"),
        ({"url": "http://host:0"}, "url"),
        ({"url": "http://user:secret@host"}, "url"),
        ({"url": "http://host/?a=1"}, "url"),
        ({"url": "http://ho st/"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"engine": "quantum"}, "engine"),
        ({"model": ""}, "model"),
        ({"model": "x" * 201}, "model"),
        ({"credential_variable": "not a name"}, "credential_variable"),
        ({"credential_variable": "DATABASE_URL"}, "credential_variable"),  # would be sent to the address given
        ({"slots": 0}, "slots"),
    ],
)
def test_an_attachment_that_cannot_be_is_refused_naming_the_field(
    operator: APIClient, change: dict[str, Any], field: str
) -> None:
    body = {"url": "http://host:8000", "engine": "vllm", "model": "llama"} | change
    refused = operator.post("/api/instances/", body, format="json")
    assert refused.status_code == 400
    assert field in refused.json()["errors"]
    assert "secret" not in refused.content.decode()
    assert not Instance.objects.exists()


def test_an_attached_engine_is_let_go_and_can_be_attached_again(operator: APIClient) -> None:
    body = {"url": "http://host:8000", "engine": "vllm", "model": "llama"}
    first = operator.post("/api/instances/", body, format="json").json()["id"]
    stopped = operator.post(f"/api/instances/{first}/stop/", {"reason": "moved"}, format="json")
    assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
    assert operator.post("/api/instances/", body, format="json").json()["id"] != first


def test_an_instance_is_drained(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    answer = operator.post(f"/api/instances/{instance.pk}/stop/", {}, format="json")
    assert answer.status_code == 202
    instance.refresh_from_db()
    assert (instance.state, instance.desire) == (InstanceState.DRAINING, InstanceDesire.STOPPED)


def test_what_is_not_there_is_not_found(operator: APIClient) -> None:
    nothing = "00000000-0000-7000-8000-000000000000"
    for method, address in [
        ("get", f"/api/instances/{nothing}/"),
        ("post", f"/api/instances/{nothing}/stop/"),
        ("post", f"/api/nodes/{nothing}/token/"),
        ("post", f"/api/versions/{nothing}/retire/"),
        ("post", f"/api/versions/{nothing}/serve/"),
    ]:
        assert getattr(operator, method)(address).status_code == 404


def test_a_version_is_made_scaled_and_retired(operator: APIClient) -> None:
    operator.post("/api/models/", {"name": "m"}, format="json")
    body = {
        "model": "m",
        "name": "v1",
        "engine": "llamacpp",
        "artefact_uri": "file:///m.gguf",
        "memory_bytes": 1000,
        "device_kind": "cpu",
    }
    version = operator.post("/api/versions/", body, format="json").json()
    address = f"/api/versions/{version['id']}"
    assert operator.put(f"{address}/replicas/", {"replicas": 2}, format="json").json()["replicas"] == 2
    assert operator.put(f"{address}/replicas/", {"replicas": -1}, format="json").status_code == 400
    assert operator.post(f"{address}/retire/").json()["state"] == "retired"
    assert operator.post(f"{address}/serve/").json()["state"] == "serving"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": "quantum"}, "engine"),
        ({"engine": "ollama"}, "engine"),  # the pool does not start it
        ({"artefact_uri": "http://host/m.gguf"}, "artefact_uri"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"engine_args": {"no_such_argument": 1}}, "engine_args"),
        ({"engine_args": {"n_ctx": [1]}}, "engine_args"),
        ({"artefact_uri": "", "engine_args": {"a": "\x00"}}, "engine_args"),
        ({"artefact_uri": "", "engine_args": {"a\x00": 1}}, "engine_args"),
        ({"artefact_uri": "", "memory_bytes": 0, "replicas": 1}, "replicas"),
        ({"model": "none"}, "model"),
        ({"name": ""}, "name"),
    ],
)
def test_a_version_that_could_not_run_is_refused(operator: APIClient, change: dict[str, Any], field: str) -> None:
    operator.post("/api/models/", {"name": "m"}, format="json")
    body = {
        "model": "m",
        "name": "v1",
        "engine": "llamacpp",
        "artefact_uri": "file:///m.gguf",
        "memory_bytes": 1000,
        "device_kind": "cpu",
    } | change
    refused = operator.post("/api/versions/", body, format="json")
    assert refused.status_code == 400
    assert field in refused.json()["errors"], refused.json()


def test_engine_arguments_that_are_no_unicode_text_are_refused(operator: APIClient) -> None:
    operator.post("/api/models/", {"name": "m"}, format="json")
    body = r'{"model": "m", "name": "v1", "engine": "vllm", "engine_args": {"a": "\ud800"}}'
    refused = operator.generic("POST", "/api/versions/", body, content_type="application/json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["engine_args"])


def test_a_model_cannot_belong_to_a_tenant_that_does_not_exist(operator: APIClient) -> None:
    body = {"name": "m", "tenant_id": "00000000-0000-7000-8000-000000000000"}
    refused = operator.post("/api/models/", body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["tenant_id"])


def test_lists_come_in_pages_newest_first(operator: APIClient) -> None:
    for number in range(5):
        services.create_model(f"m{number}", actor=SYSTEM)
    page = operator.get("/api/models/?limit=2").json()
    assert [row["name"] for row in page["results"]] == ["m4", "m3"]
    following = operator.get(page["next"]).json()
    assert [row["name"] for row in following["results"]] == ["m2", "m1"]

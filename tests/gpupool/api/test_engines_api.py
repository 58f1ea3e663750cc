"""The capability matrix and the switches over the control API."""

import pytest
from rest_framework.test import APIClient

from gpupool import selectors, services
from gpupool.api import views
from gpupool.engines.plugins import BrokenPlugin
from gpupool.models import EngineSwitch
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole
from tenants.services import create_user

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.gpupool.api.urls")]


def _client(role: PlatformRole) -> APIClient:
    client = APIClient()
    client.force_authenticate(create_user(email="o@example.org", password=None, platform_role=role, actor=SYSTEM))
    return client


def test_the_matrix_names_every_engine_and_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenPlugin("warp", "warp-drive", "warp_room:ROOM cannot be imported: ImportError.")
    monkeypatch.setattr(views, "broken_plugins", lambda: (broken,))
    told = _client(PlatformRole.READ_ONLY).get("/api/engines/").json()
    assert [engine["name"] for engine in told["results"]] == [engine.name for engine in selectors.list_engines()]
    engine = next(engine for engine in told["results"] if engine["name"] == "llamacpp")
    assert (engine["title"], engine["protocol"], engine["package"]) == ("llama.cpp", "openai", "gatehouse")
    assert (engine["enabled"], engine["launchable"], engine["instances"]) == (True, True, 0)
    assert engine["capabilities"][:2] == ["chat", "completions"]
    assert told["broken"] == [{"name": "warp", "package": "warp-drive", "reason": broken.reason}]


@pytest.mark.parametrize(
    ("role", "status"), [(PlatformRole.NONE, 403), (PlatformRole.READ_ONLY, 403), (PlatformRole.OPERATOR, 200)]
)
def test_only_operators_switch(role: PlatformRole, status: int) -> None:
    answer = _client(role).patch("/api/engines/vllm/", {"enabled": False}, format="json")
    assert answer.status_code == status
    assert EngineSwitch.objects.filter(name="vllm", enabled=False).exists() == (status == 200)


def test_a_switch_is_told_and_audited() -> None:
    services.attach_engine("http://host:8000", engine="vllm", model_name="m", actor=SYSTEM)
    client = _client(PlatformRole.OPERATOR)
    off = client.patch("/api/engines/vllm/", {"enabled": False}, format="json").json()
    assert (off["enabled"], off["instances"]) == (False, 1)
    assert client.get("/api/engines/vllm/").json() == off
    event = AuditEvent.objects.get(action="engine.disabled")
    assert (event.actor_kind, event.after["instances"]) == ("user", 1)
    refused = client.post("/api/instances/", {"url": "http://other:1", "engine": "vllm", "model": "m"}, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["engine"])


@pytest.mark.parametrize(
    ("name", "body", "status"), [("warp", {"enabled": False}, 404), ("vllm", {}, 400), ("vllm", {"enabled": "x"}, 400)]
)
def test_what_cannot_be_switched_is_a_problem(name: str, body: dict[str, object], status: int) -> None:
    refused = _client(PlatformRole.OPERATOR).patch(f"/api/engines/{name}/", body, format="json")
    assert (refused.status_code, refused["content-type"]) == (status, "application/problem+json")
    assert not EngineSwitch.objects.exists()

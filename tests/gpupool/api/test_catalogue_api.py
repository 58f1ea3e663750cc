"""The catalogue by the control API: a model is brought in as its manual says, and what is refused says why."""

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from rest_framework.test import APIClient

from gpupool.admission_settings import AdmissionSettings
from gpupool.models import Model, ModelVersion
from gpupool.policies.admission import Rule
from gpupool.policies.manifest import stated
from gpupool.weights.hashing import make_manifest
from tenants.actor import SYSTEM
from tenants.models import PlatformRole
from tenants.services import create_user
from tests.factories import make_fine_tuning_job, make_model, make_tenant, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.gpupool.api.urls")]

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny512.gguf"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "catalogue.md"
CARD = DOCS.read_text().split("```yaml\n")[1].split("```")[0]
"""The card that the manual shows: it has to be a good one."""


@pytest.fixture
def operator() -> APIClient:
    client = APIClient()
    client.force_authenticate(
        create_user(email="o@example.test", password=None, platform_role=PlatformRole.OPERATOR, actor=SYSTEM)
    )
    return client


def a_version(client: APIClient, **more: Any) -> dict[str, Any]:
    if not Model.objects.filter(name="support-bot").exists():
        assert client.post("/api/models/", {"name": "support-bot"}, format="json").status_code == 201
    body = {
        "model": "support-bot",
        "name": "2026-11",
        "engine": "llamacpp",
        "artefact_uri": TINY.as_uri(),
        "memory_bytes": 1 << 20,
        "device_kind": "cpu",
    }
    answer = client.post("/api/versions/", body | more, format="json")
    assert answer.status_code == 201, answer.content
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.shows("R74")
def test_a_model_is_brought_in_as_the_manual_says(operator: APIClient, settings: Settings) -> None:
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED)
    version = a_version(operator)
    address = f"/api/versions/{version['id']}"
    assert version["state"] == "draft"
    refused = operator.post(f"{address}/admit/", {}, format="json")
    assert refused.status_code == 409
    assert [reason.split(":")[0] for reason in refused.json()["reasons"]] == [
        "There is no manifest",
        "There is no model card (model-card.yaml).",
    ]
    manifest = stated(make_manifest(TINY))
    put = operator.put(f"{address}/manifest/", manifest, format="json", headers={"If-Match": "*"})
    assert (put.status_code, put.json()) == (200, manifest)
    empty = operator.get(f"{address}/card/")
    card = operator.put(f"{address}/card/", CARD, content_type="application/yaml", headers={"If-Match": empty["ETag"]})
    assert (card.status_code, card.json()["faults"]) == (200, [])
    assert operator.post(f"{address}/admit/", {}, format="json").json()["state"] == "admitted"
    assert operator.post(f"{address}/serve/", format="json").json()["state"] == "serving"
    told = operator.get(f"{address}/lineage/").json()
    assert [one["name"] for one in told["data_sets"]] == ["support tickets 2020-2025", "product manuals"]
    assert told["licence"] == "apache-2.0"
    assert told["manifest_sha256"] == operator.get(f"{address}/").json()["checks"]["manifest"]["sha256"]


def test_an_incomplete_card_is_kept_in_a_draft_and_says_what_it_lacks(operator: APIClient) -> None:
    address = f"/api/versions/{a_version(operator, draft=True)['id']}"
    put = operator.put(f"{address}/card/", {"model": "support-bot"}, format="json", headers={"If-Match": "*"})
    assert put.status_code == 200
    assert "The card lacks licence" in put.json()["faults"][1]
    refused = operator.post(f"{address}/admit/", {}, format="json")
    assert refused.status_code == 409  # even where no card is asked for: what is given is looked at
    assert refused.json()["type"] == "urn:gatehouse:problem:conflict"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"a: &x 1\nb: *x", "application/yaml", 400),
        (b"- 1", "application/yaml", 400),
        (b"[", "application/yaml", 400),
        (b"x: 1\nx: 2", "application/yaml", 400),
        (b'x: "\\UFFFFFFFF"', "application/yaml", 400),
        (b'x: "\\ud800"', "application/yaml", 400),
        (b'x: "\\0"', "application/yaml", 400),
        (b'"\\ud800": 1', "application/yaml", 400),
        (b'"\\0": 1', "application/yaml", 400),
        (b"[1]", "application/json", 400),
        (b'{"model": "\\u0000"}', "application/json", 400),
        (b'{"\\u0000": 1}', "application/json", 400),
        (b'{"x": 1e400}', "application/json", 400),
        (b'{"x": [{"y": -1e400}]}', "application/json", 400),
        (b'{"\\ud800": "\\ud800"}', "application/json", 400),
        (b"a=1", "application/x-www-form-urlencoded", 415),
    ],
)
def test_what_is_no_card_is_refused(operator: APIClient, content: bytes, kind: str, status: int) -> None:
    address = f"/api/versions/{a_version(operator, draft=True)['id']}/card/"
    answer = operator.put(address, content, content_type=kind, headers={"If-Match": "*"})
    assert answer.status_code == status


def test_of_two_people_who_change_one_draft_the_second_is_told(operator: APIClient) -> None:
    address = f"/api/versions/{a_version(operator, draft=True)['id']}/"
    seen = operator.get(address)
    change = {"memory_bytes": 1 << 21, "priority": 1, "gpu_tag": ""}
    assert operator.patch(address, change, format="json").status_code == 428
    first = operator.patch(address, change, format="json", headers={"If-Match": seen["ETag"]})
    assert (first.status_code, first.json()["memory_bytes"], first.json()["priority"]) == (200, 1 << 21, 1)
    second = operator.patch(address, {"priority": 0}, format="json", headers={"If-Match": seen["ETag"]})
    assert second.status_code == 412
    wrong = operator.patch(address, {"share": 2.0}, format="json", headers={"If-Match": first["ETag"]})
    assert (wrong.status_code, list(wrong.json()["errors"])) == (400, ["share"])


def test_what_serves_is_not_changed(operator: APIClient) -> None:
    address = f"/api/versions/{a_version(operator)['id']}/"
    answer = operator.patch(address, {"priority": 1}, format="json", headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "The version is serving: only a draft can be changed. Make a new version.",
    )


def test_a_version_that_is_asked_for_twice_with_one_key_is_made_once(operator: APIClient) -> None:
    headers = {"Idempotency-Key": "once"}
    operator.post("/api/models/", {"name": "m"}, format="json")
    body = {"model": "m", "name": "v1", "engine": "vllm"}
    first, again = (operator.post("/api/versions/", body, format="json", headers=headers) for _ in range(2))
    assert (first.json()["id"], again["Idempotent-Replayed"]) == (again.json()["id"], "true")
    assert ModelVersion.objects.count() == 1


def test_a_model_is_found_by_its_other_names(operator: APIClient) -> None:
    model = make_model("qwen3-8b")
    made = operator.post(f"/api/models/{model.pk}/aliases/", {"name": "qwen-latest"}, format="json")
    assert (made.status_code, made.json()["model"]) == (201, "qwen3-8b")
    (found,) = operator.get("/api/models/?name=qwen-latest").json()["results"]
    assert (found["name"], found["aliases"]) == ("qwen3-8b", ["qwen-latest"])
    taken = operator.post("/api/models/", {"name": "qwen-latest"}, format="json")
    assert (taken.status_code, list(taken.json()["errors"])) == (400, ["name"])
    version = operator.post("/api/versions/", {"model": "qwen-latest", "name": "v1", "engine": "vllm"}, format="json")
    assert version.json()["model"] == "qwen3-8b"
    assert operator.delete(f"/api/aliases/{made.json()['id']}/").status_code == 204
    assert operator.get(f"/api/models/{model.pk}/aliases/").json()["results"] == []


def test_an_adapter_is_registered_and_retired(operator: APIClient) -> None:
    tenant = make_tenant()
    version = make_version(make_model())
    body = {"name": "tone", "artefact_uri": "file:///models/tone", "sha256": "0" * 64, "size_bytes": 9, "rank": 8}
    made = operator.post(f"/api/versions/{version.pk}/adapters/", body | {"tenant_id": str(tenant.pk)}, format="json")
    assert (made.status_code, made.json()["state"], made.json()["tenant_id"]) == (201, "stored", str(tenant.pk))
    assert [one["name"] for one in operator.get(f"/api/adapters/?version={version.pk}").json()["results"]] == ["tone"]
    retired = operator.post(f"/api/adapters/{made.json()['id']}/retire/")
    assert retired.json()["state"] == "retired"
    assert operator.post(f"/api/adapters/{made.json()['id']}/retire/").status_code == 409


def test_a_switch_names_what_is_in_the_way(operator: APIClient) -> None:
    old = a_version(operator)
    new = a_version(operator, name="2026-12", draft=True)
    answer = operator.post(f"/api/versions/{new['id']}/switch/", {"instead_of": old["id"]}, format="json")
    assert (answer.status_code, "No instance of 2026-12 is ready" in answer.json()["detail"]) == (409, True)


def test_versions_are_filtered(operator: APIClient) -> None:
    a_version(operator)
    a_version(operator, name="2026-12", draft=True)
    told = operator.get("/api/versions/?model=support-bot&state=draft").json()["results"]
    assert [one["name"] for one in told] == ["2026-12"]
    assert operator.get("/api/versions/?colour=red").status_code == 400


def test_a_job_and_its_data_are_in_the_lineage_of_the_version_that_it_trained_on(operator: APIClient) -> None:
    tenant, version = make_tenant(), make_version(make_model())
    job = make_fine_tuning_job(tenant, version)
    adapter = version.adapters.create(
        job=job, name="ft", artefact_uri="file:///a", sha256="1" * 64, size_bytes=1, rank=4
    )
    (told,) = operator.get(f"/api/versions/{version.pk}/lineage/").json()["adapters"]
    assert (told["id"], told["job_id"], told["training_file_sha256"]) == (str(adapter.pk), str(job.pk), None)

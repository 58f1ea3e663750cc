"""Will it fit, by the control API; reservations; what would ease the pool."""

from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from gpupool import services
from gpupool.models import Device, Instance, Lease, ModelVersion, Node, Reservation
from gpupool.policies.version_needs import VersionNeeds
from gpupool.services.reservations import create_reservation
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole
from tenants.services import create_tenant, create_user
from tenants.services.limits import create_limit
from tests.gpupool.gguf_headers import LLAMA_3_8B, Q4_0, write_model
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.gpupool.api.urls")]
TINY = Path(__file__).parents[2] / "data" / "tiny512.gguf"


def client(role: PlatformRole) -> APIClient:
    made = APIClient()
    user = create_user(email=f"{role}@example.org", password=None, platform_role=role, actor=SYSTEM)
    made.force_authenticate(user)
    return made


@pytest.fixture
def operator() -> APIClient:
    return client(PlatformRole.OPERATOR)


def ask(operator: APIClient, **body: Any) -> dict[str, Any]:
    answered = operator.post("/api/placement/dry-run/", body, format="json")
    assert answered.status_code == 200, answered.content
    told: dict[str, Any] = answered.json()
    return told


@pytest.fixture
def artefact(tmp_path: Path) -> str:
    return f"file://{write_model(tmp_path / 'llama.gguf', LLAMA_3_8B, Q4_0)}"


def test_it_says_where_and_of_what_the_estimate_is_made(operator: APIClient, artefact: str) -> None:
    an_online_node(a_device("gpu-0", memory_bytes=16 * GIB), a_device("gpu-1", memory_bytes=4 * GIB))
    told = ask(operator, engine="llamacpp", artefact_uri=artefact, context_tokens=8192, flash_attention=False)
    assert told["verdict"] == "fits"
    assert told["reason"] == "It would go to node-1/gpu-0."
    (card,) = told["estimate"]["cards"]
    assert card["total"] == sum(card[name] for name in ("weights", "kv_cache", "compute", "graphs", "overhead"))
    assert told["memory_bytes"] == card["total"] == told["estimate"]["device_bytes"] > told["estimate"]["file_bytes"]
    chosen, other = told["devices"]
    assert (chosen["chosen"], chosen["fits"], chosen["reason"]) == (True, True, "")
    assert set(chosen["scores"]) == {"emptiness", "wholeness", "memory", "capability", "shape"}
    assert (other["fits"], other["code"]) == (False, "memory")
    assert "it needs 5.8 GiB, 4.0 GiB can be claimed" in other["reason"]
    assert not Lease.objects.exists()
    assert not Instance.objects.exists()


def test_what_is_asked_otherwise_is_estimated_anew(operator: APIClient, artefact: str) -> None:
    an_online_node(a_device("gpu-0"))
    body = {"engine": "llamacpp", "artefact_uri": artefact, "context_tokens": 32768, "flash_attention": True}
    asked: list[dict[str, Any]] = [{}, {"cache_type": "q8_0"}, {"devices": 2}, {"context_tokens": 1024}]
    sizes = [ask(operator, **{**body, **more})["memory_bytes"] for more in asked]
    assert sizes[0] > sizes[1] > sizes[3]
    assert sizes[0] > sizes[2]


@pytest.mark.shows("R28")
def test_several_devices_and_their_topology(operator: APIClient, artefact: str) -> None:
    node = an_online_node(a_device("gpu-0"), a_device("gpu-1"))
    body = {"engine": "llamacpp", "artefact_uri": artefact, "devices": 2, "topology": "required"}
    told = ask(operator, **body)
    assert told["verdict"] == "does_not_fit"
    assert "in a way that nobody tells, and its topology is required" in told["reason"]
    Device.objects.filter(node=node.pk, stable_id="gpu-0").update(links=[{"peer": "gpu-1", "kind": "nvlink"}])
    told = ask(operator, **body)
    assert told["reason"] == "It would go to node-1/gpu-0, node-1/gpu-1, connected over NVLink."
    assert told["nearness"] == 0.95
    assert operator.post("/api/models/", {"name": "m"}, format="json").status_code == 201
    version = operator.post("/api/versions/", {**body, "model": "m", "name": "v1", "memory_bytes": GIB}, format="json")
    assert (version.json()["devices"], version.json()["topology"]) == (2, "required")


@pytest.mark.shows("R22")
def test_gpu_memory_in_the_words_of_a_manifest(operator: APIClient) -> None:
    an_online_node(a_device("gpu-0", memory_bytes=4 * GIB))
    body = {"engine": "llamacpp", "artefact_uri": "file:///nowhere.gguf"}
    told = ask(operator, **body, resources={"nvidia.com/gpu-memory": "2g"})
    assert (told["verdict"], told["memory_bytes"]) == ("fits", 2 * GIB)
    assert told["estimate"] is None
    assert "no file /nowhere.gguf" in told["estimate_reason"]
    created = operator.post("/api/models/", {"name": "m"}, format="json")
    assert created.status_code == 201
    version = operator.post(
        "/api/versions/",
        {**body, "model": "m", "name": "v1", "resources": {"nvidia.com/gpu-memory": "2g", "nvidia.com/gpu": 2}},
        format="json",
    )
    assert version.status_code == 201, version.content
    assert (version.json()["memory_bytes"], version.json()["devices"]) == (2 * GIB, 2)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "version"),
        ({"version": "0198a5a0-0000-7000-8000-000000000000"}, "version"),
        ({"engine": "nothing"}, "engine"),
        ({"engine": "llamacpp", "engine_args": {"x": 1}}, "engine_args"),
        ({"engine": "llamacpp", "cache_type": "q3"}, "cache_type"),
        ({"engine": "llamacpp", "resources": {"cpu": 1}}, "resources"),
        ({"engine": "llamacpp", "memory_bytes": 5, "resources": {"nvidia.com/gpu-memory": "2g"}}, "memory_bytes"),
        ({"engine": "llamacpp", "tenant": "nobody"}, "tenant"),
        ({"engine": "llamacpp", "isolation": {"sandbox": "wood"}}, "isolation"),
    ],
)
def test_a_question_that_makes_no_sense_names_its_field(operator: APIClient, body: dict[str, Any], field: str) -> None:
    refused = operator.post("/api/placement/dry-run/", body, format="json")
    assert refused.status_code == 400
    assert field in refused.json()["errors"]


def test_a_version_claims_what_is_estimated_where_nobody_says_it(operator: APIClient, artefact: str) -> None:
    version = a_version("m", memory_bytes=0, artefact=artefact)
    assert version.memory_bytes > 4 * GIB
    told = ask(operator, version=str(version.pk))
    assert told["memory_bytes"] == version.memory_bytes
    refused = operator.post(
        "/api/versions/",
        {"model": "m", "name": "v2", "engine": "llamacpp", "artefact_uri": "file:///nowhere.gguf"},
        format="json",
    )
    assert refused.status_code == 400
    (message,) = refused.json()["errors"]["memory_bytes"]
    assert message.startswith("Say how many bytes one instance claims on each of its devices. It cannot be estimated")


def test_a_claim_below_the_estimate_is_said(operator: APIClient, artefact: str) -> None:
    an_online_node(a_device("gpu-0"))
    told = ask(operator, version=str(a_version("m", memory_bytes=GIB, artefact=artefact).pk))
    assert (told["verdict"], told["memory_bytes"]) == ("fits", GIB)
    assert any("It claims 1.0 GiB of each device, and" in note for note in told["notes"])


def test_what_its_engine_measured_corrects_it(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"))
    version = a_version("m", artefact=f"file://{TINY}")
    instance = place_one(version, node)
    Instance.objects.filter(pk=instance.pk).update(ready_at=instance.created_at, device_peak_bytes=3 * GIB)
    told = ask(operator, version=str(version.pk))
    assert told["estimate"]["measured"] is True
    assert told["estimate"]["device_bytes"] == 3 * GIB
    assert ask(operator, version=str(version.pk), context_tokens=512)["estimate"]["measured"] is False


def test_who_would_have_to_go_is_told(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    low = a_version("low", memory_bytes=12 * GIB)
    ModelVersion.objects.filter(pk=low.pk).update(priority=-1)
    instance = place_one(low, node)
    told = ask(operator, engine="llamacpp", artefact_uri="file:///x.gguf", memory_bytes=8 * GIB)
    assert (told["verdict"], told["preempted"]) == ("preempts", [str(instance.pk)])
    equal = ask(operator, engine="llamacpp", artefact_uri="file:///x.gguf", memory_bytes=8 * GIB, priority=-1)
    assert equal["verdict"] == "does_not_fit"


def test_a_tenants_limit_counts_what_it_holds(operator: APIClient) -> None:
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB), a_device("gpu-1", memory_bytes=16 * GIB))
    create_limit(metric="gpus", window="standing", amount=1, tenant=acme, actor=SYSTEM)
    services.create_model("own", tenant_id=acme.pk, actor=SYSTEM)
    place_one(a_version("own", memory_bytes=12 * GIB), node)
    body = {"engine": "llamacpp", "artefact_uri": "file:///x.gguf", "memory_bytes": 8 * GIB}
    told = ask(operator, **body, tenant="acme")
    assert told["verdict"] == "does_not_fit"
    assert {one["code"] for one in told["devices"]} == {"memory", "quota"}
    assert ask(operator, **body)["verdict"] == "fits"


@pytest.mark.shows("R132")
def test_what_a_tenant_uses_now_stands_beside_what_it_holds_and_may_hold(operator: APIClient) -> None:
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    node = an_online_node(a_device("gpu-0"))
    services.create_model("own", tenant_id=acme.pk, actor=SYSTEM)
    first, second = (place_one(a_version("own", memory_bytes=4 * GIB), node) for _ in range(2))
    place_one(a_version("other", memory_bytes=GIB), node)
    Instance.objects.update(pid=7, device_bytes=GIB)
    create_limit(tenant=acme, metric="gpu_memory", window="standing", amount=10 * GIB, actor=SYSTEM)

    def told() -> Any:
        (row,) = operator.get("/api/placement/quotas/").json()["results"]
        assert (row["tenants"], row["metric"], row["amount"]) == ([str(acme.pk)], "gpu_memory", 10 * GIB)
        return row["held"], row["used_bytes"]

    assert told() == (8 * GIB, 2 * GIB)
    Instance.objects.filter(pk=first.pk).update(device_bytes=3 * GIB)
    assert told() == (8 * GIB, 4 * GIB)
    Instance.objects.filter(pk=second.pk).update(device_bytes=None)
    assert told() == (8 * GIB, None)  # unknown is not zero


def test_reservations_are_made_changed_and_given_up(operator: APIClient) -> None:
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    created = operator.post("/api/reservations/", {"tenant_id": str(acme.pk), "devices": 2}, format="json")
    assert created.status_code == 201, created.content
    address, tag = f"/api/reservations/{created.json()['id']}/", created["etag"]
    assert operator.patch(address, {"devices": 3}, format="json").status_code == 428
    changed = operator.patch(address, {"lendable": False}, format="json", HTTP_IF_MATCH=tag)
    assert (changed.status_code, changed.json()["lendable"], changed.json()["devices"]) == (200, False, 2)
    assert operator.delete(address, HTTP_IF_MATCH=tag).status_code == 412
    assert operator.delete(address, HTTP_IF_MATCH=changed["etag"]).status_code == 204
    assert not Reservation.objects.exists()
    told = AuditEvent.objects.filter(action__startswith="reservation.").order_by("pk").values_list("action", flat=True)
    assert list(told) == ["reservation.created", "reservation.changed", "reservation.deleted"]


def test_a_second_reservation_of_a_tag_and_one_of_nothing_are_refused(operator: APIClient) -> None:
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    create_reservation(acme.pk, devices=1, actor=SYSTEM)
    again = operator.post("/api/reservations/", {"tenant_id": str(acme.pk), "devices": 2}, format="json")
    assert again.status_code == 409
    nothing = operator.post("/api/reservations/", {"tenant_id": str(acme.pk), "gpu_tag": "x"}, format="json")
    assert nothing.status_code == 400
    listed = client(PlatformRole.READ_ONLY).get("/api/reservations/", {"tenant_id": str(acme.pk)})
    assert len(listed.json()["results"]) == 1


@pytest.mark.shows("R121")
def test_a_device_under_pressure_gets_a_proposal_and_nothing_moves(operator: APIClient) -> None:
    full = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB), name="full")
    free = an_online_node(a_device("gpu-9", memory_bytes=16 * GIB), name="free")
    instance = place_one(a_version("m", memory_bytes=4 * GIB), full)
    Device.objects.filter(node=full.pk).update(memory_used_bytes=15 * GIB)
    Device.objects.filter(node=free.pk).update(memory_used_bytes=GIB)
    (move,) = operator.get("/api/placement/rebalance/").json()["moves"]
    assert move["instance_id"] == str(instance.pk)
    assert (move["from_label"], move["to_label"]) == ("full/gpu-0", "free/gpu-9")
    assert move["reason"] == "94% of the memory of full/gpu-0 is in use."
    assert (move["from_share"], move["to_share"]) == (11 / 16, 5 / 16)
    instance.refresh_from_db()
    assert instance.node_id == full.pk
    Node.objects.filter(pk=free.pk).update(cordoned=True)
    assert operator.get("/api/placement/rebalance/").json()["moves"] == []


def test_needs_of_a_version_reach_the_decision(operator: APIClient) -> None:
    an_online_node(a_device("gpu-0", memory_bytes=80 * GIB))
    Device.objects.update(tags=["H100-80GB"])
    model = services.create_model("m", actor=SYSTEM)
    version = services.create_version(
        model,
        name="v1",
        engine="llamacpp",
        artefact_uri="file:///x.gguf",
        memory_bytes=40 * GIB,
        needs=VersionNeeds(gpu_tag="H100-80GB"),
        actor=SYSTEM,
    )
    told = ask(operator, version=str(version.pk))
    assert told["devices"][0]["code"] == "limit"
    assert ask(operator, version=str(version.pk), mem_limit_mb=65_536)["verdict"] == "fits"


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": "nan"},
        {"share": "inf"},
        {"request_shape": {"batch": 10**400, "sequence_length": 10**400, "precision": "int4"}},
        {"request_shape": {"batch": True, "sequence_length": 8}},
        {"request_shape": {"batch": 1, "sequence_length": 8, "precision": {"x": 1}}},
        {"resources": {"nvidia.com/gpu": "0" * 8 + "1" + "9" * 5000}},
        {"resources": {"nvidia.com/gpu": "000000001999"}},
        {"resources": {"nvidia.com/gpu-memory": "9" * 18 + "Ti"}},
        {"resources": {"nvidia.com/gpu-memory": "٣g"}},
        {"gpu_tag": "a\0b"},
        {"isolation": {"mps": True, "mps_clients": 10**400}},
        {"memory_bytes": 10**30},
        {"devices": 10**30},
        {"engine_args": {"n_ctx": 10**400}},
        {"engine_args": {"n_ctx": [[[]]]}},
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(operator: APIClient, wrong: dict[str, Any]) -> None:
    an_online_node(a_device("gpu-0", memory_bytes=80 * GIB))
    Device.objects.update(name="NVIDIA A100-SXM4-80GB")
    body = {"engine": "llamacpp", "artefact_uri": f"file://{TINY}", **wrong}
    answered = operator.post("/api/placement/dry-run/", body, format="json")
    assert answered.status_code == 400, answered.content
    assert next(iter(wrong)) in answered.content.decode()

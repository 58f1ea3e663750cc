"""Instances by the API: put to sleep, woken, acquired for a tenant, and how near they are to serving."""

from collections.abc import Iterator

import msgspec
import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from core.ids import uuid7
from gpupool.models import Instance, InstanceDesire, InstanceLog, ModelVersion
from gpupool.services.inventory import apply_observed
from gpupool.stream.desired import read_desired
from tenants.actor import SYSTEM
from tenants.models import PlatformRole, Tenant
from tenants.services import create_user
from tests.doubles.sleeper import registered, sleeper
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one, seen

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.gpupool.api.urls")]


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


@pytest.fixture
def operator() -> APIClient:
    client = APIClient()
    user = create_user(email="op@example.org", password=None, platform_role=PlatformRole.OPERATOR, actor=SYSTEM)
    client.force_authenticate(user)
    return client


@pytest.fixture
def version() -> ModelVersion:
    version = a_version("m")
    ModelVersion.objects.filter(pk=version.pk).update(engine="sleeper")
    return version


def ready(version: ModelVersion) -> Instance:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(version, node)
    observed = seen(instance, "ready", pid=41, port=21_000)
    fact = msgspec.structs.replace(observed.instances[0], load_seconds=2.5, started_from="cold")
    apply_observed(node.pk, node.session, msgspec.structs.replace(observed, instances=[fact]))
    return instance


def test_an_instance_is_put_to_sleep_and_woken(operator: APIClient, version: ModelVersion) -> None:
    instance = ready(version)
    address = f"/api/instances/{instance.pk}/"
    told = operator.get(address).json()
    assert (told["tier"], told["load_seconds"], told["wake_seconds"]) == ("awake", 2.5, None)
    answer = operator.post(f"{address}sleep/", {"reason": "Quiet hours."}, format="json")
    assert (answer.status_code, answer.json()["desire"]) == (202, "asleep")
    assert operator.post(f"{address}wake/", {}, format="json").json()["desire"] == "running"
    operator.post(f"{address}stop/", {}, format="json")
    refused = operator.post(f"{address}wake/", {}, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["instance"])
    assert operator.post(f"/api/instances/{uuid7()}/sleep/", {}, format="json").status_code == 404


def test_what_cannot_sleep_is_refused_with_the_reason(operator: APIClient) -> None:
    instance = ready(a_version("m"))
    refused = operator.post(f"/api/instances/{instance.pk}/sleep/", {}, format="json")
    assert refused.status_code == 400
    assert "llama.cpp cannot give its devices' memory back" in refused.content.decode()
    assert operator.post(f"/api/instances/{instance.pk}/sleep/", {"staged": True}, format="json").status_code == 202


@pytest.mark.shows("R95")
def test_a_tenant_acquires_an_instance_lets_it_go_and_finds_it_again(
    operator: APIClient, version: ModelVersion
) -> None:
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    body = {"version": str(version.pk), "tenant": str(tenant.pk)}
    first = operator.post("/api/instances/acquire/", body, format="json")
    assert (first.status_code, first.json()["reused"], first.json()["tier"]) == (201, False, "cold")
    made = first.json()["instance"]["id"]
    assert first.json()["instance"]["tenant_id"] == str(tenant.pk)
    waiting = operator.post(f"/api/instances/{made}/release/", {}, format="json")
    assert (waiting.status_code, "no place yet" in waiting.content.decode()) == (400, True)
    again = operator.post("/api/instances/acquire/", body, format="json")
    assert (again.status_code, again.json()["reused"], again.json()["instance"]["id"]) == (200, True, made)
    tiers = operator.get(f"/api/instances/tiers/?version={version.pk}").json()
    assert (tiers["acquisitions"], tiers["reuses"], tiers["reuse_ratio"]) == (2, 1, 0.5)
    assert [one["tier"] for one in tiers["tiers"]] == ["cold", "staged", "asleep", "awake"]
    listed = operator.get(f"/api/instances/?tenant={tenant.pk}").json()["results"]
    assert [one["id"] for one in listed] == [made]
    assert operator.get(f"/api/instances/?tenant={uuid7()}").json()["results"] == []


def test_a_repeated_acquisition_with_its_key_is_one(operator: APIClient, version: ModelVersion) -> None:
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    body = {"version": str(version.pk), "tenant": str(tenant.pk)}
    for _ in range(2):
        answer = operator.post("/api/instances/acquire/", body, format="json", headers={"idempotency-key": "k"})
        assert answer.status_code == 201
    assert Instance.objects.get().acquisitions == 1
    for wrong in ({"version": str(uuid7())}, {"tenant": str(uuid7())}):
        assert operator.post("/api/instances/acquire/", body | wrong, format="json").status_code == 400


@pytest.mark.shows("R19")
def test_wake_latency_is_told_by_tier(operator: APIClient, version: ModelVersion) -> None:
    instance = ready(version)
    Instance.objects.filter(pk=instance.pk).update(wake_seconds=0.25, desire=InstanceDesire.RUNNING)
    tiers = {one["tier"]: one for one in operator.get("/api/instances/tiers/").json()["tiers"]}
    assert tiers["cold"]["latency"] == {"measured": 1, "median": 2.5, "longest": 2.5}
    assert tiers["asleep"]["latency"]["median"] == 0.25
    assert tiers["staged"]["latency"]["median"] is None
    assert tiers["awake"]["instances"] == 1


@pytest.mark.shows("R120")
def test_each_version_says_how_its_instances_are_isolated(operator: APIClient) -> None:
    """Two deployments of a model on one node, one in a sandbox; what a version asks for is refused where unknown."""
    node = an_online_node(a_device("gpu0"))
    created = operator.post("/api/models/", {"name": "m"}, format="json")
    assert created.status_code == 201
    version = {"model": "m", "engine": "llamacpp", "artefact_uri": "file:///m.gguf", "memory_bytes": 1 << 30}
    asked = {"plain": {}, "boxed": {"sandbox": "bubblewrap", "cgroup": True}}
    for name, isolation in asked.items():
        made = operator.post("/api/versions/", version | {"name": name, "isolation": isolation}, format="json")
        assert made.status_code == 201, made.content
        place_one(ModelVersion.objects.get(name=name), node)
    assert [row.isolation for row in read_desired(node.pk).instances] == list(asked.values())
    refused = operator.post("/api/versions/", version | {"name": "x", "isolation": {"hope": True}}, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["isolation"])


def test_how_it_came_to_its_state_is_told_newest_first(operator: APIClient, version: ModelVersion) -> None:
    instance = ready(version)
    told = operator.get(f"/api/instances/{instance.pk}/events/").json()["results"]
    assert [(one["value"], one["by"]) for one in told][:2] == [("ready", "node"), ("staging", "system")]
    assert told[0]["through"] == ["loading", "warming"]
    assert told[-1]["before"] == ""
    assert operator.get(f"/api/instances/{uuid7()}/events/").status_code == 404


def test_the_end_of_its_log_is_told_once_its_node_has_sent_it(operator: APIClient, version: ModelVersion) -> None:
    instance = ready(version)
    address = f"/api/instances/{instance.pk}/log/"
    assert operator.get(address).json() == {
        "instance_id": str(instance.pk),
        "told_at": None,
        "cut": False,
        "lines": [],
    }
    InstanceLog.objects.update(text="one\ntwo", told_at=timezone.now(), cut=True)
    told = operator.get(address).json()
    assert (told["lines"], told["cut"]) == (["one", "two"], True)
    assert operator.get(f"/api/instances/{uuid7()}/log/").status_code == 404
    Instance.objects.update(attached=True)
    assert operator.get(address).status_code == 400

"""Sleep, tenants' own instances and the way back, with real processes: web, controller, agent, relay and llama.cpp.

One house for all: each test has models of its own. llama.cpp cannot sleep, so its instances are staged.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import pytest
from pytest_django import DjangoDbBlocker

from bench.house import House, wait_until
from bench.rows import Key, make_key, make_tenant
from gpupool import services
from gpupool.agent.leftovers import stop_all
from gpupool.models import Device, Instance, InstanceState, Lease, ModelVersion, VersionState
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole, Tenant
from tenants.services import create_access_token
from tests.factories import make_user
from tests.house import house_environ, own_database
from tests.ports import worker_port

pytestmark = pytest.mark.slow

NODE: Final = "node-1"
DOORS: Final = ("relay", "web")
MIB: Final = 1 << 20


class Sleepers(House):
    """The pool's processes and both doors; `api` is the control API for an operator."""

    api: httpx.Client
    tenants: dict[str, Tenant]
    keys: dict[str, Key]

    def settle_in(self) -> None:
        self.environ |= {
            "GATEHOUSE_NODE_TOKEN": services.create_node(NODE, actor=SYSTEM).token,
            "GATEHOUSE_WEB_URL": self.web_url,
            "GATEHOUSE_ENGINE_PORT_FIRST": str(worker_port(1_200)),
            "GATEHOUSE_ASLEEP_PER_DEVICE": "1",
            "GATEHOUSE_SNAPSHOT_POLL_SECONDS": "0.05",
        }
        self.tenants = {name: make_tenant(name, models=("*",)) for name in ("acme", "umbra")}
        self.keys = {name: make_key(tenant, "test") for name, tenant in self.tenants.items()}
        operator = make_user(platform_role=PlatformRole.OPERATOR)
        headers = {"authorization": f"Token {create_access_token(operator, name='test', actor=SYSTEM).secret}"}
        self.start("web")
        self.api = httpx.Client(base_url=f"{self.web_url}/api/", headers=headers, timeout=30)
        self.start("agent", "--node", NODE)
        for name in ("controller", "drain", "relay"):
            self.start(name)
        wait_until(Device.objects.filter(kind="cpu", memory_bytes__isnull=False).exists, "the node tells its device")

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, json=body)
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()

    def ask(self, door: str, tenant: str, model: str) -> httpx.Response:
        return httpx.post(
            f"{self.relay_url if door == 'relay' else self.web_url}/v1/chat/completions",
            json={"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
            headers={"authorization": f"Bearer {self.keys[tenant].secret}"},
            timeout=30,
        )

    def listed(self, door: str, tenant: str) -> set[str]:
        url = self.relay_url if door == "relay" else self.web_url
        headers = {"authorization": f"Bearer {self.keys[tenant].secret}"}
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=30)
        return {one["id"] for one in answer.json()["data"]}

    def becomes(self, status: int, door: str, tenant: str, model: str) -> None:
        """Until that door answers the tenant so."""
        wait_until(lambda: self.ask(door, tenant, model).status_code == status, f"{status} for {tenant} at {door}")

    def serves(self, model: str, *tenants: str) -> None:
        """Until both doors answer these tenants."""
        for door in DOORS:
            for tenant in tenants:
                self.becomes(200, door, tenant, model)

    def comes_again(self, door: str, tenant: str, model: str) -> None:
        answer = self.ask(door, tenant, model)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_ready_instance"), answer.text
        assert int(answer.headers["retry-after"]) >= 1


@pytest.fixture(scope="module")
def house(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sleepers]:
    folder = tmp_path_factory.mktemp("sleepers")
    with own_database(django_db_blocker) as database_url:
        house = Sleepers(folder, house_environ(database_url))
        try:
            house.settle_in()
            yield house
        finally:
            house.stop_all()
            stop_all(folder / "var", grace_seconds=1.0)


@pytest.fixture(scope="module")
def failing(house: Sleepers, tiny_model: Path) -> tuple[ModelVersion, ModelVersion]:
    """A version that served, and a new one that cannot be loaded; how long that is looked at, the others use."""
    stable = a_version("back", tiny_model, replicas=1)
    wait_until(lambda: ModelVersion.objects.get(pk=stable.pk).last_stable_at is not None, "the first version serves")
    services.set_replicas(stable.pk, 0, actor=SYSTEM)
    return stable, a_version("back", tiny_model.with_name("tiny512.missing.gguf"), replicas=1)


def a_version(name: str, artefact: Path, *, memory_bytes: int = 64 * MIB, **members: Any) -> ModelVersion:
    found = ModelVersion.objects.filter(model__name=name)
    model = found[0].model if found else services.create_model(name, actor=SYSTEM)
    return services.create_version(
        model, name=f"v{len(found) + 1}", engine="llamacpp", artefact_uri=f"file://{artefact}", device_kind="cpu",
        memory_bytes=memory_bytes, actor=SYSTEM, **members,
    )  # fmt: skip


def claimed(instance: Instance) -> int:
    return Lease.objects.get(holder=f"instance:{instance.pk}", released_at=None).memory_bytes


def gives_back(instance: Instance) -> None:
    wait_until(lambda: claimed(instance) == MIB, "its claim is given back")


def until(instance: Instance, **members: Any) -> None:
    wait_until(Instance.objects.filter(pk=instance.pk, **members).exists, f"{members}")
    instance.refresh_from_db()


@pytest.mark.usefixtures("failing")
def test_an_instance_asleep_leaves_the_routing_gives_its_claim_back_and_serves_again(
    house: Sleepers, tiny_model: Path
) -> None:
    version = a_version("nap", tiny_model, replicas=1)
    wait_until(Instance.objects.filter(version=version, state=InstanceState.READY).exists, "it is ready")
    instance = Instance.objects.get(version=version)
    house.serves("nap", "acme", "umbra")
    claim = (claimed(instance), instance.lease_id, instance.fencing_token)

    assert house.post(f"instances/{instance.pk}/sleep/", staged=True)["desire"] == "asleep"
    until(instance, state=InstanceState.ASLEEP)
    gives_back(instance)
    assert instance.pid is None
    for door in DOORS:
        house.becomes(503, door, "acme", "nap")
        house.comes_again(door, "acme", "nap")
        assert "nap" in house.listed(door, "acme")  # it is there, and comes

    house.post(f"instances/{instance.pk}/wake/")
    until(instance, state=InstanceState.READY)
    house.serves("nap", "acme", "umbra")
    assert (claimed(instance), instance.lease_id, instance.fencing_token) == claim
    assert Instance.objects.filter(version=version).count() == 1  # no other was started in its place
    actions = AuditEvent.objects.filter(subject_id=str(instance.pk)).values_list("action", flat=True)
    assert {"instance.sleep_requested", "instance.wake_requested"} <= set(actions)
    services.set_replicas(version.pk, 0, actor=SYSTEM)
    until(instance, state=InstanceState.STOPPED)


@pytest.mark.usefixtures("failing")
@pytest.mark.shows("R16", "R18")
def test_a_tenants_own_instance_sleeps_by_itself_ends_for_another_and_answers_no_other_tenant(
    house: Sleepers, tiny_model: Path
) -> None:
    whole = Device.objects.get(kind="cpu").memory_bytes or 0
    version = a_version("own", tiny_model, memory_bytes=whole * 6 // 10)  # one awake at a time
    versions = ModelVersion.objects.filter(pk=version.pk)
    got: dict[str, Instance] = {}
    for tenant in ("acme", "umbra"):
        versions.update(idle_sleep_seconds=3600.0)  # it is still awake when it is asked, however late that is
        told = house.post("instances/acquire/", version=str(version.pk), tenant=str(house.tenants[tenant].pk))
        assert (told["reused"], told["instance"]["tenant_id"]) == (False, str(house.tenants[tenant].pk))
        got[tenant] = Instance.objects.get(pk=told["instance"]["id"])
        house.becomes(200, "relay", tenant, "own")
        for door in DOORS:
            for other in house.tenants.keys() - {tenant}:
                house.comes_again(door, other, "own")
        versions.update(idle_sleep_seconds=1.0)
        until(got[tenant], state=InstanceState.ASLEEP)  # it had no request for a while
        gives_back(got[tenant])
    until(got["acme"], state=InstanceState.STOPPED)
    ends = AuditEvent.objects.get(action="instance.stop_requested", subject_id=str(got["acme"].pk))
    assert "it was used the longest ago" in ends.after["reason"]
    got["umbra"].refresh_from_db()
    assert got["umbra"].state == InstanceState.ASLEEP
    versions.update(idle_sleep_seconds=3600.0)
    again = house.post("instances/acquire/", version=str(version.pk), tenant=str(house.tenants["umbra"].pk))
    assert (again["reused"], again["tier"], again["instance"]["id"]) == (True, "staged", str(got["umbra"].pk))
    house.becomes(200, "relay", "umbra", "own")
    for door in DOORS:
        house.comes_again(door, "acme", "own")
    services.stop_instance(got["umbra"].pk, actor=SYSTEM)


@pytest.mark.shows("R104")
def test_a_version_that_cannot_be_loaded_gives_way_to_the_last_one_that_could(
    house: Sleepers, failing: tuple[ModelVersion, ModelVersion]
) -> None:
    stable, new = failing
    wait_until(ModelVersion.objects.filter(pk=new.pk, state=VersionState.ADMITTED).exists, "it gives way")
    stable.refresh_from_db()
    assert (stable.state, stable.replicas) == (VersionState.SERVING, 1)
    house.serves("back", "acme", "umbra")
    assert not Instance.objects.filter(version=new, ready_at__isnull=False).exists()
    wait_until(
        lambda: not Instance.objects.filter(version=new).exclude(state=InstanceState.STOPPED).exists(), "it ends"
    )
    assert AuditEvent.objects.filter(action="model_version.rolled_back", subject_id=str(new.pk)).count() == 1

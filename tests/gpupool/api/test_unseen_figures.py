"""What an instance or a device told last is not told as if it were so now: null, and since when."""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from gpupool import selectors, services
from gpupool.models import Device, Instance, Node
from gpupool.policies.silence import SILENT_AFTER
from gpupool.reads.device_metrics import DeviceCollector
from gpupool.stream.messages import EngineLoadFact
from tests.factories import make_user
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db
UNKNOWN = dict.fromkeys(selectors.FIGURES)


@pytest.fixture
def operator(db: None) -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user(platform_role="operator"))
    return client


@pytest.fixture
def busy() -> Instance:
    """An instance with requests on a GPU whose agent tells all that it measures."""
    instance = place_one(a_version("llama"), an_online_node(a_device("gpu-0")))
    report(instance, "ready", running=3)
    return Instance.objects.get()


def report(instance: Instance, state: str, *, health: str = "ok", running: int | None = None) -> None:
    """One of its agent, which measures its memory, and its load where it serves: where `running` is given."""
    observed = seen(instance, state, pid=41, port=21_000)
    fact = msgspec.structs.replace(
        observed.instances[0], device_bytes=7 << 30, memory_rss_bytes=1 << 30, kv_capacity_bytes=2 << 30,
        weights_bytes=1 << 30,
    )  # fmt: skip
    device = msgspec.structs.replace(
        a_device("gpu-0"), memory_used_bytes=8 << 30, utilization=0.5, temperature_celsius=61.0, health=health,
        telemetry={"power_watts": 300.0}, processes=[{"pid": 41, "memory_bytes": 5, "instance_id": str(instance.pk)}],
    )  # fmt: skip
    load = EngineLoadFact(instance_id=instance.pk, running=running, waiting=0, kv_used=0.25)
    loads = [] if running is None else [load]
    node = Node.objects.get()
    assert node.session_id is not None
    services.apply_observed(
        node.pk, node.session_id, msgspec.structs.replace(observed, devices=[device], instances=[fact], load=loads)
    )


def figures(operator: APIClient, instance: Instance) -> dict[str, Any]:
    """The same by the list and by its own address."""
    told = operator.get(f"/api/instances/{instance.pk}/").json()
    assert operator.get("/api/instances/").json()["results"] == [told]
    return {name: told[name] for name in (*selectors.FIGURES, "heard_at")}


def test_figures_are_told_with_when_they_were_so(operator: APIClient, busy: Instance) -> None:
    told = figures(operator, busy)
    heard = operator.get("/api/nodes/").json()["results"][0]["last_seen_at"]
    assert told == {
        "running_requests": 3, "waiting_requests": 0, "kv_used": 0.25, "device_bytes": 7 << 30,
        "memory_rss_bytes": 1 << 30, "heard_at": heard,
    }  # fmt: skip


@pytest.mark.parametrize("state", ["unknown", "ready"])
@pytest.mark.parametrize("node_state", ["unreachable", "online"])
def test_of_an_instance_that_is_not_seen_figures_are_null_and_since_when_is_told(
    operator: APIClient, busy: Instance, state: str, node_state: str
) -> None:
    """With no controller to notice that it is silent, its node stays `online`."""
    Instance.objects.update(state=state)
    Node.objects.update(state=node_state, last_seen_at=datetime(2026, 11, 3, 12, 30, tzinfo=UTC))
    assert figures(operator, busy) == {**UNKNOWN, "heard_at": "2026-11-03T12:30:00Z"}
    stopping = operator.post(f"/api/instances/{busy.pk}/stop/", {}, format="json").json()
    assert {name: stopping[name] for name in UNKNOWN} == UNKNOWN


def test_of_an_instance_that_is_barred_its_node_tells_figures_all_the_same(operator: APIClient, busy: Instance) -> None:
    report(busy, "ready", health="failed", running=4)
    assert Instance.objects.get().state == "unknown"
    told = figures(operator, busy)
    assert [told[name] for name in selectors.FIGURES] == [4, 0, 0.25, 7 << 30, 1 << 30]


def test_of_an_engine_that_does_not_answer_its_node_only_the_memory_is_known(
    operator: APIClient, busy: Instance
) -> None:
    report(busy, "unknown")
    assert Instance.objects.get().state == "unknown"
    told = figures(operator, busy)
    assert [told[name] for name in selectors.FIGURES] == [None, None, None, 7 << 30, 1 << 30]
    report(busy, "ready", running=5)
    assert figures(operator, busy)["running_requests"] == 5


def test_pages_and_the_api_have_one_rule(busy: Instance) -> None:
    def is_seen() -> bool:
        one: Any = selectors.list_instances(now).get()
        assert selectors.is_unseen(one, now) == (one.running_now is None) == (one.rss_now is None)
        return not selectors.is_unseen(one, now)

    now = timezone.now()
    just, long_ago = timedelta(seconds=1), SILENT_AFTER + timedelta(seconds=1)
    for state in ("ready", "asleep", "unknown"):
        for node_state, ago in product(("online", "unreachable"), (just, long_ago)):
            Instance.objects.update(state=state)
            Node.objects.update(state=node_state, last_seen_at=now - ago)
            assert is_seen() == (node_state == "online" and ago == just)
    for state in ("ready", "failed", "unknown"):  # attached ones
        Instance.objects.update(node=None, state=state)
        assert is_seen() == (state != "unknown")


@pytest.mark.parametrize("how", ["its node is silent", "nothing is told of it"])
def test_of_a_silent_device_no_reading_is_told(operator: APIClient, busy: Instance, how: str) -> None:
    address = f"/api/nodes/{busy.node_id}/devices/"
    (told,) = operator.get(address).json()["results"]
    assert (told["memory_used_bytes"], told["health"], told["telemetry"]) == (8 << 30, "ok", {"power_watts": 300.0})
    assert "DCGM_FI_DEV_GPU_TEMP" in samples()
    if how == "its node is silent":
        Node.objects.update(state="unreachable")
    else:
        Device.objects.update(observed_at=timezone.now() - SILENT_AFTER - timedelta(seconds=1))
    (told,) = operator.get(address).json()["results"]
    readings = ("memory_used_bytes", "utilization", "temperature_celsius", "telemetry", "processes")
    assert [told[name] for name in readings] == [None] * 5
    assert (told["health"], told["memory_bytes"], told["observed_at"] is not None) == ("unknown", 16 << 30, True)
    assert samples() == {
        "gatehouse_device_health": {"ok": 0, "failed": 0, "unknown": 1},
        "gatehouse_device_isolated": 0,
    }


def samples() -> dict[str, Any]:
    """What Prometheus is told of the one device."""
    found: dict[str, Any] = {}
    for family in DeviceCollector().collect():
        for sample in family.samples:
            if "health" in sample.labels:
                found.setdefault(sample.name, {})[sample.labels["health"]] = sample.value
            else:
                found[sample.name] = sample.value
    return found


def test_the_tree_of_memory_has_no_figures_of_a_cache_that_nobody_sees(operator: APIClient, busy: Instance) -> None:
    def caches() -> list[tuple[Any, int]]:
        tree = operator.get("/api/gpu-memory/").json()
        return [
            (node["extra"]["kv"], len(tree["summary"]["tightest"]))
            for node in tree["nodes"]
            if node["kind"] == "instance"
        ]

    assert caches() == [(0.25, 1)]
    report(busy, "ready", health="failed", running=3)  # barred, and measured
    assert caches() == [(0.25, 1)]
    report(busy, "unknown")
    assert caches() == [(None, 0)]
    report(busy, "ready", running=3)
    assert caches() == [(0.25, 1)]
    Node.objects.update(state="unreachable")
    assert caches() == [(None, 0)]

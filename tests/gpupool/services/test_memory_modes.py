"""Memory modes in rows: caps by how full the KV cache is, carried to the routing; a CPU takes over only where it is."""

from typing import Any

import msgspec
import pytest
from django.conf import settings

from gpupool import services
from gpupool.models import Instance, InstanceState, ModelVersion
from gpupool.selectors import ReadyEndpoint, list_ready_endpoints
from gpupool.services.memory_modes import set_memory_modes
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import create_tenant
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


def a_ready_instance(*, model: str = "m", kind: str = "gpu", number: int = 0) -> Instance:
    node = an_online_node(a_device(f"{kind}-{number}", kind=kind), name=f"node-{kind}-{number}")
    instance = place_one(a_version(model, device_kind=kind, replicas=1), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000 + number))
    instance.refresh_from_db()
    assert instance.state == InstanceState.READY
    return instance


def at(instance: Instance, kv_used: float | None) -> ReadyEndpoint:
    """How it is routed once its cache is so full."""
    Instance.objects.filter(pk=instance.pk).update(kv_used=kv_used)
    set_memory_modes(actor=SYSTEM)
    return next(ready for ready in list_ready_endpoints() if ready.instance_id == instance.pk)


def firm(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    environment: Any = settings.GATEHOUSE
    monkeypatch.setattr(settings, "GATEHOUSE", replace(environment, mode_caps_firm=True))


@pytest.mark.shows("R80")
def test_the_caps_follow_the_use_of_the_cache_and_reach_the_routing() -> None:
    instance = a_ready_instance()
    assert [at(instance, used).cap for used in (0.1, 0.75, 0.67, 0.6, None)] == [8, 4, 4, 8, None]
    assert AuditEvent.objects.filter(action="instance.memory_mode_changed").count() == 2


@pytest.mark.shows("R80")
def test_above_90_percent_a_ready_instance_on_a_cpu_takes_over_with_its_own_cap() -> None:
    gpu = a_ready_instance()
    assert at(gpu, 0.95).cap == 4  # nobody else is there
    cpu = a_ready_instance(kind="cpu", number=1)
    other = a_ready_instance(model="other", kind="cpu", number=2)
    assert at(gpu, 0.95).cap == 0
    caps = {ready.instance_id: ready.cap for ready in list_ready_endpoints()}
    assert (caps[cpu.pk], caps[other.pk]) == (12, None)
    assert at(gpu, 0.3).cap == 8
    assert {ready.instance_id: ready.cap for ready in list_ready_endpoints()}[cpu.pk] is None


def test_a_cpu_that_takes_no_requests_of_everybodys_relieves_nobody() -> None:
    gpu, cpu = a_ready_instance(), a_ready_instance(kind="cpu", number=1)
    Instance.objects.filter(pk=cpu.pk).update(tenant_id=create_tenant(slug="acme", name="Acme", actor=SYSTEM).pk)
    assert at(gpu, 0.95).cap == 4
    Instance.objects.filter(pk=cpu.pk).update(tenant_id=None)
    assert at(gpu, 0.95).cap == 0
    ModelVersion.objects.filter(pk=cpu.version_id).update(state="retired")
    assert at(gpu, 0.95).cap == 4


def test_slots_are_lowered_where_caps_are_firm_or_the_guard_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = a_ready_instance()
    Instance.objects.filter(pk=instance.pk).update(slots=64)
    ready = at(instance, 0.75)
    assert (ready.slots, ready.cap, ready.cap_firm) == (64, 4, False)
    Instance.objects.filter(pk=instance.pk).update(guard_cap=2)
    ready = at(instance, 0.75)
    assert (ready.slots, ready.cap, ready.cap_firm) == (2, 2, True)
    Instance.objects.filter(pk=instance.pk).update(guard_cap=None)
    firm(monkeypatch)
    ready = at(instance, 0.75)
    assert (ready.slots, ready.cap_firm) == (4, True)


def test_an_instance_that_serves_no_more_begins_anew() -> None:
    instance = a_ready_instance()
    at(instance, 0.95)
    Instance.objects.update(state=InstanceState.FAILED)
    set_memory_modes(actor=SYSTEM)
    instance.refresh_from_db()
    assert (instance.memory_mode, instance.concurrency_cap) == ("full", None)


@pytest.mark.shows("R63")
@pytest.mark.parametrize(
    ("changed", "serves"),
    [
        ({"temperature_celsius": 99.0}, False),
        ({"facts": {"throttled_by": "hardware_thermal"}}, False),
        ({"temperature_celsius": 70.0, "facts": {"throttled_by": "power_cap"}}, True),
    ],
)
def test_an_instance_that_answers_over_a_device_in_trouble_gets_no_requests(
    changed: dict[str, Any], serves: bool
) -> None:
    instance = a_ready_instance()
    node = instance.node
    assert node is not None
    assert node.session_id is not None
    report = seen(instance, "ready", pid=7, port=21000)
    hot = msgspec.structs.replace(report, devices=[msgspec.structs.replace(report.devices[0], **changed)])
    services.apply_observed(node.pk, node.session_id, hot)
    assert bool(list_ready_endpoints()) is serves
    services.apply_observed(node.pk, node.session_id, report)
    assert list_ready_endpoints()

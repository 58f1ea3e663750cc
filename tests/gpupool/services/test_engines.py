"""Switching engines off and on: what leaves the routing, what is refused, and what is left alone."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import UUID

import pytest
from django.db import connection, transaction

from core.epochs import Section, current_epoch, read_changes
from gpupool import services
from gpupool.engines.registry import UnknownEngine
from gpupool.models import Device, EngineSwitch, Instance, InstanceDesire, InstanceState
from gpupool.policies.lease import Refused
from gpupool.selectors import get_endpoints, list_engines, list_ready_endpoints
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.gpupool.pool import a_device, a_version, an_online_node
from tests.locks import somebody_waits

pytestmark = pytest.mark.django_db


def _attached(engine: str, port: int) -> Instance:
    made = services.attach_engine(f"http://10.0.0.1:{port}", engine=engine, model_name="llama", actor=SYSTEM).instance
    services.set_probed_state(made.pk, healthy=True, reason="", actor=SYSTEM)
    return made


def test_endpoints_of_an_engine_that_is_off_leave_the_routing_and_come_back() -> None:
    mine, other = _attached("vllm", 1), _attached("openai", 2)
    epoch, pool_epoch = current_epoch(Section.ENDPOINTS), current_epoch(Section.POOL)
    done = services.set_engine_enabled("vllm", False, actor=SYSTEM)
    assert (done.changed, done.instances) == (True, 1)
    assert [endpoint.instance_id for endpoint in list_ready_endpoints()] == [other.pk]
    assert get_endpoints([mine.pk]) == []
    changed = read_changes(Section.ENDPOINTS, after=epoch, limit=9)
    assert changed is not None
    assert [change.object_id for change in changed] == [mine.pk]
    assert current_epoch(Section.POOL) > pool_epoch
    mine.refresh_from_db()
    assert (mine.state, mine.desire) == (InstanceState.READY, InstanceDesire.RUNNING)  # it runs on
    services.set_engine_enabled("vllm", True, actor=SYSTEM)
    assert len(list_ready_endpoints()) == 2
    changed = read_changes(Section.ENDPOINTS, after=epoch, limit=9)
    assert changed is not None
    assert [change.object_id for change in changed] == [mine.pk, mine.pk]


def test_each_change_is_audited_and_no_change_is_not() -> None:
    for enabled in (True, False, False, True):
        services.set_engine_enabled("vllm", enabled, actor=SYSTEM)
    events = AuditEvent.objects.order_by("pk")
    assert [event.action for event in events] == ["engine.disabled", "engine.enabled"]
    assert (events[0].before, events[0].after) == (
        {"engine": "vllm", "enabled": True},
        {"engine": "vllm", "enabled": False, "instances": 0},
    )


def test_an_engine_that_nobody_knows_cannot_be_switched() -> None:
    with pytest.raises(UnknownEngine, match="no engine 'warp'"):
        services.set_engine_enabled("warp", False, actor=SYSTEM)
    assert not EngineSwitch.objects.exists()


def test_nothing_of_an_engine_that_is_off_is_attached() -> None:
    services.set_engine_enabled("vllm", False, actor=SYSTEM)
    with pytest.raises(InvalidInput, match="The engine vLLM is switched off") as refused:
        _attached("vllm", 1)
    assert refused.value.field == "engine"
    assert not Instance.objects.exists()
    assert _attached("openai", 1).state == InstanceState.WARMING


def test_nothing_of_an_engine_that_is_off_is_placed() -> None:
    an_online_node(a_device("gpu-0"))
    instance = services.request_instance(a_version("m").pk, actor=SYSTEM)
    services.set_engine_enabled("llamacpp", False, actor=SYSTEM)
    outcome = services.claim_and_place(instance.pk, Device.objects.get().pk, actor=SYSTEM)
    assert outcome == Refused("The engine llama.cpp is switched off.")
    instance.refresh_from_db()
    assert (instance.state, instance.reason) == (InstanceState.REQUESTED, "The engine llama.cpp is switched off.")
    services.set_engine_enabled("llamacpp", True, actor=SYSTEM)
    assert not isinstance(services.claim_and_place(instance.pk, Device.objects.get().pk, actor=SYSTEM), Refused)


def test_the_matrix_says_what_each_engine_can_do_and_how_it_stands() -> None:
    _attached("vllm", 1)
    services.attach_engine("http://10.0.0.1:2", engine="vllm", model_name="llama", actor=SYSTEM)  # not yet ready
    services.set_engine_enabled("vllm", False, actor=SYSTEM)
    engines = {engine.name: engine for engine in list_engines()}
    vllm = engines["vllm"]
    assert (vllm.title, vllm.package, vllm.protocol, vllm.enabled) == ("vLLM", "gatehouse", "openai", False)
    assert (vllm.instances, vllm.serving) == (2, 1)
    assert vllm.capabilities[:2] == ("chat", "completions")
    assert (engines["openai"].launchable, engines["llamacpp"].launchable) == (False, True)
    assert engines["llamacpp"].enabled


@pytest.mark.django_db(transaction=True)
def test_an_instance_that_becomes_ready_in_the_same_moment_is_told_to_the_relays_too() -> None:
    ready, committed = Event(), Event()

    def attach() -> UUID:
        try:
            with transaction.atomic():
                made = _attached("vllm", 1).pk
                ready.set()
                committed.wait(10)  # until the switch waits for this transaction
                return made
        finally:
            connection.close()

    def switch() -> None:
        try:
            services.set_engine_enabled("vllm", False, actor=SYSTEM)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        attaching = threads.submit(attach)
        assert ready.wait(10)
        switching = threads.submit(switch)
        for _ in range(500):
            if somebody_waits():
                break
            time.sleep(0.01)
        committed.set()
        made = attaching.result(10)
        epoch = current_epoch(Section.ENDPOINTS)
        switching.result(10)
    changed = read_changes(Section.ENDPOINTS, after=0, limit=99)
    assert changed is not None
    assert changed[-1].object_id == made
    assert changed[-1].epoch >= epoch
    event = AuditEvent.objects.get(action="engine.disabled")
    assert event.after["instances"] == 1

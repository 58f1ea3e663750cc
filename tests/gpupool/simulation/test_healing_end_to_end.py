"""A GPU falls off the bus: isolated in words and rows, its instance served elsewhere, and back when it is quiet."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from bench.house import House, wait_until
from core.clock import SystemClock
from gpupool import services
from gpupool.discovery.base import Noticed
from gpupool.models import Device, DeviceEvent, HealingAction, Instance, InstanceState, Lease, Node
from gpupool.reads.healing import why_device_is_out
from gpupool.simulation import devices as simulated
from gpupool.simulation.fleet import FleetSettings, SimulatedNode
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.house import house_environ, own_database
from tests.ports import worker_port

GIB = 1 << 30
FELL_OFF = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus."


class Breaking(simulated.SimulatedDevices):
    """GPUs that stay well until the test says otherwise."""

    breaks = ""  # the GPU that falls off the bus at the next look

    def _happen(self, gpu: simulated._Gpu, passed: float, now: float) -> Noticed | None:
        if gpu.uuid != Breaking.breaks:
            return None
        Breaking.breaks = ""
        gpu.errors.failed_until = now + 2.0
        at = SystemClock().now().timestamp() - 7200  # by a clock that is two hours slow
        return Noticed(source="kernel_log", kind="xid", at=at, stable_id=gpu.uuid, code=79, text=FELL_OFF)


@pytest.fixture
def house(django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path: Path) -> Iterator[House]:
    with own_database(django_db_blocker) as database_url:
        house = House(tmp_path, house_environ(database_url))
        try:
            yield house
        finally:
            house.stop_all()


@contextmanager
def an_agent_that_runs(node: SimulatedNode) -> Iterator[None]:
    """The real agent on a loop of its own: the test itself speaks to the database."""
    loop = asyncio.new_event_loop()
    running = loop.create_task(node.run())

    def run() -> None:
        loop.run_until_complete(asyncio.gather(running, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, name="agent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(running.cancel)
        thread.join(20)


def held_device(instance: Instance) -> Device:
    return Lease.objects.select_related("device").get(
        holder=f"instance:{instance.pk}", released_at=None, device__kind="gpu"
    ).device  # fmt: skip


@pytest.mark.slow
@pytest.mark.shows("P15")
def test_a_gpu_that_fell_off_the_bus_is_taken_out_its_instance_moves_and_it_comes_back(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.simulation.fleet.SimulatedDevices", Breaking)
    model = services.create_model("llama", actor=SYSTEM)
    services.create_version(
        model, name="v1", engine="vllm", artefact_uri="file:///simulated/llama", memory_bytes=20 * GIB,
        device_kind="gpu", replicas=1, actor=SYSTEM,
    )  # fmt: skip
    token = services.create_node("node-1", actor=SYSTEM).token
    house.start("web")
    house.start("controller")
    fleet = FleetSettings(
        kind="h100", gpus=2, web_url=house.web_url, var_dir=tmp_path / "agent",
        port_first=worker_port(1_400), speed=60, traffic=0.0,
    )  # fmt: skip
    with an_agent_that_runs(SimulatedNode("node-1", token, 0, fleet)):
        ready = Instance.objects.filter(state=InstanceState.READY)
        wait_until(ready.exists, "an instance is ready", seconds=120)
        first = ready.get()
        broken = held_device(first)
        Breaking.breaks = broken.stable_id

        wait_until(lambda: ready.exclude(pk=first.pk).exists(), "another took its place", seconds=120)
        assert held_device(ready.exclude(pk=first.pk).get()).pk != broken.pk
        wait_until(lambda: Instance.objects.get(pk=first.pk).state == InstanceState.STOPPED, "the first one stopped")

        broken.refresh_from_db()
        assert broken.isolated_by == "healing"
        event = DeviceEvent.objects.get(code=79)
        assert event.decided
        assert event.device_id == broken.pk
        assert "XID 79" in event.verdict
        told = list(HealingAction.objects.order_by("pk").values_list("action", "state"))
        assert told == [("reboot", "dry_run"), ("isolate", "done")]  # hardware actions are off by default
        assert not Node.objects.get().cordoned
        audited = AuditEvent.objects.filter(action__in=("healing.decided", "device.isolated"))
        assert sorted(audited.values_list("action", flat=True)) == ["device.isolated"] + ["healing.decided"] * 2
        assert all(row.after["reason"] for row in audited)

        # It answers again; the ten minutes of quiet are over at once.
        wait_until(lambda: Device.objects.get(pk=broken.pk).health == "ok", "it answers again")
        assert "without an error" in (why_device_is_out(Device.objects.get(pk=broken.pk), now=timezone.now()) or "")
        long_ago = timezone.now() - timedelta(minutes=11)
        DeviceEvent.objects.update(received_at=long_ago)
        HealingAction.objects.update(created_at=long_ago, finished_at=long_ago)
        Device.objects.filter(pk=broken.pk).update(isolated_at=long_ago)
        wait_until(lambda: Device.objects.get(pk=broken.pk).isolated_at is None, "it came back")
        assert AuditEvent.objects.filter(action="device.given_back").count() == 1

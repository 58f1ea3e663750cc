"""Services that lock the same rows at once wait for each other, and never in a ring.

A key that points at a row takes a share of that row's lock: a lock that is not on the key lets it.
"""

import threading
from collections.abc import Callable

import msgspec
import pytest
from django.db import Error, connection, transaction

from gpupool import services
from gpupool.models import Device, Instance, InstanceState, Lease, ModelVersion
from gpupool.policies.instance import State
from gpupool.services.changes import Changes
from gpupool.services.claims import lock_devices
from gpupool.services.instances import lock_instance, move
from gpupool.services.inventory import apply_observed
from tenants.actor import SYSTEM
from tests.factories import make_tenant
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one, seen
from tests.locks import somebody_waits
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Beside:
    """Does something in a transaction of its own, as another process would."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Error as error:  # told to the test
            self.error = error
        finally:
            connection.close()

    def waits(self) -> None:
        """Until it waits for a lock."""
        wait_until(somebody_waits, "a lock is waited for")

    def ends(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def test_a_claim_and_a_report_of_the_same_device_at_once() -> None:
    node = an_online_node(a_device("gpu0"))
    device = Device.objects.get()
    running = place_one(a_version("m"), node)
    waiting = services.request_instance(a_version("n").pk, actor=SYSTEM)
    report = seen(running, "ready", pid=1, port=21_000)
    used = [msgspec.structs.replace(one, memory_used_bytes=GIB) for one in report.devices]
    with transaction.atomic():
        lock_devices([device.pk])
        beside = Beside(lambda: apply_observed(node.pk, node.session, msgspec.structs.replace(report, devices=used)))
        beside.waits()
        assert isinstance(services.claim_and_place(waiting.pk, device.pk, actor=SYSTEM), Lease)
    beside.ends()
    running.refresh_from_db()
    assert running.state == InstanceState.READY


def test_an_acquisition_and_an_instance_that_becomes_ready_at_once() -> None:
    node, version, tenant = an_online_node(a_device("gpu0")), a_version("m"), make_tenant()
    instance = place_one(version, node)
    Instance.objects.filter(pk=instance.pk).update(pooled=True, tenant_id=tenant.pk)
    with transaction.atomic():
        locked = lock_instance(instance.pk)
        beside = Beside(lambda: services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM))
        beside.waits()
        move(locked, State.READY, reason="", actor=SYSTEM, changes=Changes())
    beside.ends()
    assert ModelVersion.objects.get(pk=version.pk).last_stable_at is not None
    assert Instance.objects.get().acquisitions == 1

"""The leader heals beside its other work: within a second of an event, and again when the database is back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, transaction

from core.clock import SystemClock
from gpupool.controller import healing
from gpupool.leases.fencing import Fence, Superseded, raise_fence
from gpupool.models import DeviceEvent, HealingAction, Node
from gpupool.policies.healing_world import Plan
from gpupool.services.healing import record_events
from gpupool.stream.messages import EventFact
from tests.gpupool.pool import a_device, an_online_node

pytestmark = pytest.mark.django_db(transaction=True)
FENCE = Fence("controller", 5)


def an_error() -> None:
    node = an_online_node(a_device("gpu-0"))
    event = EventFact(sequence=1, source="nvml", kind="xid", at=1e9, stable_id="gpu-0", code=48)
    with transaction.atomic():
        record_events(Node.objects.get(pk=node.pk), [event])


async def in_thread(call: Callable[[], Any]) -> Any:
    return await sync_to_async(call)()


async def test_an_event_is_decided_while_it_leads_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    await in_thread(an_error)
    failures = [OperationalError("away"), OperationalError("away")]
    look = healing.heal_once

    def shaky(*args: Any, **more: Any) -> Plan:
        if failures:
            raise failures.pop()
        return look(*args, **more)

    monkeypatch.setattr(healing, "heal_once", shaky)
    heal = healing.keep_healing(
        FENCE, clock=SystemClock(), in_thread=in_thread, mass_failure=lambda: False, seconds=0.01
    )
    task = asyncio.create_task(heal)
    try:
        decided = HealingAction.objects.filter(action="isolate").exists
        async with asyncio.timeout(10):
            while not await in_thread(decided):  # noqa: ASYNC110  # what is waited for is a row
                await asyncio.sleep(0.02)
        assert await in_thread(lambda: DeviceEvent.objects.get().decided)
        await in_thread(lambda: raise_fence(Fence("controller", 6)))
        with pytest.raises(Superseded):
            async with asyncio.timeout(10):
                await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

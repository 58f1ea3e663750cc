"""What a node tells of its devices, and the healing that follows."""

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from core.clock import ManualClock
from gpupool import services
from gpupool.controller.healing import heal_once
from gpupool.leases.fencing import Fence
from gpupool.models import (
    HealingAction,
    Instance,
    Node,
)
from gpupool.services import healing as healing_services
from gpupool.services.changes import Changes
from gpupool.stream.messages import ActionFact, EventFact
from tenants.actor import SYSTEM
from tests.gpupool.pool import OnlineNode, a_version, place_one, seen


def tell(node: OnlineNode, *events: EventFact) -> int:
    with transaction.atomic():
        return healing_services.record_events(Node.objects.select_for_update().get(pk=node.pk), events)


def an_xid(sequence: int, code: int, *, stable_id: str = "gpu-0", text: str = "", **data: str) -> EventFact:
    return EventFact(
        sequence=sequence, source="kernel_log", kind="xid", at=1_700_000_000.0, stable_id=stable_id, code=code,
        text=text, data=data,
    )  # fmt: skip


def say(node: OnlineNode, action: HealingAction, state: str, outcome: str = "") -> None:
    with transaction.atomic():
        changes = Changes()
        row = Node.objects.select_for_update().get(pk=node.pk)
        facts = [ActionFact(action_id=action.pk, state=state, outcome=outcome)]
        healing_services.apply_action_facts(row, facts, actor=SYSTEM, changes=changes)
        changes.publish()


def heal(*, later: float = 0.0, fence: Fence | None = None) -> Any:
    return heal_once(fence, clock=ManualClock(timezone.now() + timedelta(seconds=later)))


def a_running_instance(node: OnlineNode, *, pid: int = 70) -> Instance:
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=pid, port=21000))
    instance.refresh_from_db()
    return instance

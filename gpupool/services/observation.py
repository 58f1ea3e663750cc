"""What a node reports of one instance, in the words of its row; and whether it may count as ready."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from core.telemetry import instances as metrics
from gpupool.models import Instance, Lease, Node
from gpupool.policies.instance import State
from gpupool.services.claims import instance_holder
from gpupool.stream.messages import InstanceFact

_USE_STEP: Final = timedelta(seconds=10)
"""Between two writes of when it was last used: nobody decides by less."""


def observed_members(node: Node, instance: Instance, fact: InstanceFact) -> dict[str, Any]:
    """Members of the row by the report."""
    seen: dict[str, Any] = {
        "host": node.address, "port": fact.port, "pid": fact.pid, "slots": fact.slots,
        "process_started_at": _moment(fact.process_started_at),
        "memory_rss_bytes": fact.memory_rss_bytes, "restarts": fact.restarts,
        "device_bytes": fact.device_bytes, "device_peak_bytes": fact.device_peak_bytes,
        "kv_capacity_bytes": fact.kv_capacity_bytes, "guard_state": fact.guard_state,
        "guard_cap": fact.concurrency_cap,
        "load_seconds": fact.load_seconds, "wake_seconds": fact.wake_seconds, "started_from": fact.started_from,
    }  # fmt: skip
    used = _moment(fact.last_used_at)
    if used is not None and (instance.last_used_at is None or used - instance.last_used_at >= _USE_STEP):
        seen["last_used_at"] = used
    return seen


def measure(instance: Instance, changed: Iterable[str]) -> None:
    """Count what was just measured anew, for the latency of each tier."""
    if "load_seconds" in changed and instance.load_seconds is not None and instance.started_from:
        metrics.wake_seconds.labels(instance.started_from).observe(instance.load_seconds)
    if "wake_seconds" in changed and instance.wake_seconds is not None:
        metrics.wake_seconds.labels("asleep").observe(instance.wake_seconds)


def devices_in_trouble(instances: Iterable[Instance]) -> dict[UUID, str]:
    """Why an instance cannot serve although its engine answers, in a sentence: one of its devices failed or is out."""
    holders = {instance_holder(instance): instance.pk for instance in instances}
    if not holders:
        return {}
    trouble = Q(device__health="failed") | Q(device__isolated_at__isnull=False) | Q(device__present=False)
    rows = Lease.objects.filter(trouble, holder__in=holders, released_at__isnull=True).select_related("device")
    return {holders[lease.holder]: _trouble(lease) for lease in rows.order_by("pk")}


def barrier(instance: Instance, fact: InstanceFact, trouble: str) -> str:
    """Why it must not take requests whatever its engine says, in a sentence; empty where it may."""
    if fact.state != State.READY:
        return ""
    if instance.tenant_id is not None and fact.verified_tenant != instance.tenant_id:
        return fact.reason or "Its node has not verified yet that it serves its tenant."
    if instance.tenant_id is None and fact.verified_tenant is not None:
        return "Its node holds it for one tenant; stop it to give it to others."
    return trouble


def _trouble(lease: Lease) -> str:
    device = lease.device
    if device.isolated_at is not None:
        return f"{device.stable_id} was taken out of service: {device.isolated_reason}"
    return f"{device.stable_id} has failed." if device.present else f"{device.stable_id} is gone from its node."


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)

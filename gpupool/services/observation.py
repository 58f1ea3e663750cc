"""What a node reports of one instance, in the words of its row; and whether it may count as ready."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from core.telemetry import instances as metrics
from gpupool.models import Device, Instance, Lease, Node
from gpupool.policies.device_probe import DeviceReading
from gpupool.policies.device_probe import trouble as device_trouble
from gpupool.policies.healing_world import Isolation
from gpupool.policies.instance import State
from gpupool.policies.lease import holder_of
from gpupool.stream.messages import InstanceFact

_USE_STEP: Final = timedelta(seconds=10)
_POOLED_STEP: Final = timedelta(seconds=1)
"""Between two writes of when it was last used. Which tenant's own one sleeps for another is decided by seconds."""


def observed_members(node: Node, instance: Instance, fact: InstanceFact) -> dict[str, Any]:
    """Members of the row by the report."""
    seen: dict[str, Any] = {
        "host": node.address, "port": fact.port, "pid": fact.pid, "slots": fact.slots,
        "process_started_at": _moment(fact.process_started_at),
        "memory_rss_bytes": fact.memory_rss_bytes, "restarts": fact.restarts,
        "device_bytes": fact.device_bytes, "device_peak_bytes": fact.device_peak_bytes,
        "kv_capacity_bytes": fact.kv_capacity_bytes, "guard_state": fact.guard_state,
        "weights_bytes": fact.weights_bytes, "compute_bytes": fact.compute_bytes,
        "adapters_bytes": fact.adapters_bytes,
        "guard_cap": fact.concurrency_cap,
        "lost_serving": False,  # it is heard of
        "load_seconds": fact.load_seconds, "wake_seconds": fact.wake_seconds, "started_from": fact.started_from,
    }  # fmt: skip
    used = _moment(fact.last_used_at)
    step = _POOLED_STEP if instance.pooled else _USE_STEP
    if used is not None and (instance.last_used_at is None or used - instance.last_used_at >= step):
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
    holders = {holder_of(instance.pk): instance.pk for instance in instances}
    if not holders:
        return {}
    rows = Lease.objects.filter(holder__in=holders, released_at__isnull=True).select_related("device").order_by("pk")
    # Asked at every report: not what a device is made of, which is the larger part of its row.
    rows = rows.defer(*(f"device__{name}" for name in ("tags", "regions", "capability", "links", "processes")))
    return {holders[lease.holder]: reason for lease in rows if (reason := _trouble(lease.device))}


def barrier(instance: Instance, fact: InstanceFact, trouble: str) -> str:
    """Why it must not take requests whatever its engine says, in a sentence; empty where it may."""
    if fact.state != State.READY:
        return ""
    if instance.tenant_id is not None and fact.verified_tenant != instance.tenant_id:
        return fact.reason or "Its node has not verified yet that it serves its tenant."
    if instance.tenant_id is None and fact.verified_tenant is not None:
        return "Its node holds it for one tenant; stop it to give it to others."
    return trouble


def _trouble(device: Device) -> str:
    """What its device says against an instance. On one that a person or support has out, what runs may run on."""
    if device.isolated_at is not None and device.isolated_by not in (Isolation.PERSON, Isolation.SUPPORT):
        return f"{device.stable_id} was taken out of service: {device.isolated_reason}"
    return device_trouble(
        DeviceReading(
            label=device.stable_id,
            present=device.present,
            health=device.health,
            temperature_celsius=device.temperature_celsius,
            limit_celsius=device.telemetry.get("temperature_limit_celsius"),
            utilization=device.utilization,
            memory_bytes=device.memory_bytes,
            memory_used_bytes=device.memory_used_bytes,
            throttled_by=str(device.facts.get("throttled_by", "")),
        )
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)

"""What an agent says of its engines, in the words of the stream."""

from collections.abc import Callable, Mapping

from gpupool.agent.guard import Reading
from gpupool.agent.life import EngineLife
from gpupool.policies.node_reconcile import Phase
from gpupool.stream.messages import DesiredInstance, InstanceFact

DeviceUse = Callable[[str], Mapping[int, int | None] | None]
"""Bytes of a device by the process that has them; None for one that does not say."""


def living(life: EngineLife, device_bytes: int | None, reading: Reading) -> InstanceFact:
    """An engine as it is now; `reading` is what its guard measured."""
    record, process = life.record, life.process
    return InstanceFact(
        instance_id=life.instance_id,
        state=record.phase,
        lease_id=record.row.lease_id,
        fencing_token=record.row.fencing_token,
        port=record.port if process is not None else None,
        pid=record.pid,
        process_started_at=record.process_started_at,
        reason=record.reason,
        memory_rss_bytes=process.rss_bytes() if process is not None else None,
        slots=record.slots,
        restarts=record.restarts,
        device_bytes=device_bytes,
        device_peak_bytes=life.peak_bytes,
        kv_capacity_bytes=record.kv_capacity_bytes,
        load_seconds=record.load_seconds,
        wake_seconds=record.wake_seconds,
        started_from=record.started_from,
        last_used_at=record.last_used_at,
        verified_tenant=record.verified_tenant,
        guard_state=reading.guard_state,
        concurrency_cap=reading.cap,
    )


def absent(row: DesiredInstance, phase: Phase, reason: str) -> InstanceFact:
    """An answer to a row of which there is no engine."""
    return InstanceFact(
        instance_id=row.instance_id,
        state=phase,
        lease_id=row.lease_id,
        fencing_token=row.fencing_token,
        reason=reason,
    )


def used_by(life: EngineLife, device_use: DeviceUse) -> int | None:
    """Bytes that the engine's processes have of its devices; None where those do not say."""
    if life.process is None:
        return None
    uses = [device_use(device) for device in life.record.row.device_ids]
    if not uses or any(use is None for use in uses):
        return None
    family = set(life.process.members())
    counts = [count for use in uses if use is not None for pid, count in use.items() if pid in family]
    if any(count is None for count in counts):
        return None
    used = sum(count for count in counts if count is not None)
    life.peak_bytes = max(life.peak_bytes or 0, used)
    return used

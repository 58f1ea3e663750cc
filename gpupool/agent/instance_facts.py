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
        weights_bytes=record.weights_bytes,
        compute_bytes=record.compute_bytes,
        adapters_bytes=record.adapters_bytes,
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
    """Bytes that the engine's processes have of its devices; None where one of those does not say.

    A device that lists none of them says nothing: many drivers list no processes at all, and in a container they have
    other numbers.
    """
    if life.process is None or not life.record.row.device_ids:
        return None
    family, used = set(life.process.members()), 0
    for device in life.record.row.device_ids:
        use = device_use(device) or {}
        counts = [use[pid] for pid in family & use.keys()]
        known = [count for count in counts if count is not None]
        if not counts or len(known) < len(counts):
            return None
        used += sum(known)
    life.peak_bytes = max(life.peak_bytes or 0, used)
    return used

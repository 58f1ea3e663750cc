"""The desired state of one node, read whole."""

from collections.abc import Iterable
from uuid import UUID

from core.epochs import Section, current_epoch
from gpupool.models import Instance, InstanceDesire, InstanceState, Lease
from gpupool.stream.messages import Desired, DesiredInstance, InstanceFact


def read_desired(node_id: UUID, orphans: Iterable[InstanceFact] = ()) -> Desired:
    """Every instance of the node that is not known to have stopped, as rows for its agent.

    `orphans` are processes that the agent reported and that no instance of ours accounts for (its row was
    stopped while the node was away, or is gone): they are told to stop, under the lease they name.
    """
    # The epoch first: rows read after it are at least as new, and a later change comes with a higher one.
    revision = current_epoch(Section.DESIRED)
    instances = list(
        Instance.objects.filter(node_id=node_id)
        .exclude(state=InstanceState.STOPPED)
        .select_related("version")
        .order_by("pk")
    )
    holders = [f"instance:{instance.pk}" for instance in instances]
    claims: dict[str, list[Lease]] = {}
    for lease in Lease.objects.filter(holder__in=holders, released_at__isnull=True).select_related("device"):
        claims.setdefault(lease.holder, []).append(lease)
    rows = [_row(instance, claims.get(f"instance:{instance.pk}", [])) for instance in instances]
    known = {row.instance_id for row in rows}
    rows += [_stop_row(fact) for fact in orphans if fact.instance_id not in known]
    return Desired(revision=revision, instances=rows)


def _row(instance: Instance, leases: list[Lease]) -> DesiredInstance:
    # Without a claim it may not run, whatever was wished: the device is not its own.
    running = instance.desire == InstanceDesire.RUNNING and bool(leases)
    return DesiredInstance(
        instance_id=instance.pk,
        state="running" if running else "stopped",
        lease_id=instance.lease_id or 0,
        fencing_token=instance.fencing_token,
        device_ids=[lease.device.stable_id for lease in leases],
        memory_bytes=sum(lease.memory_bytes for lease in leases),
        engine=instance.engine,
        served_name=instance.version.served_name,
        artefact_uri=instance.version.artefact_uri,
        engine_args=instance.version.engine_args,
    )


def _stop_row(fact: InstanceFact) -> DesiredInstance:
    return DesiredInstance(
        instance_id=fact.instance_id,
        state="stopped",
        lease_id=fact.lease_id,
        fencing_token=fact.fencing_token,
        device_ids=[],
        memory_bytes=0,
        engine="",
        served_name="",
        artefact_uri="",
        engine_args={},
    )

"""The desired state of one node, read whole."""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db.models import F, Max
from django.utils import timezone

from core.epochs import Section, current_epoch
from gpupool.engines.registry import engines
from gpupool.models import DeviceEvent, Instance, InstanceDesire, InstanceLog, InstanceState, Lease, ModelVersion
from gpupool.policies.instance import UP, State
from gpupool.policies.lease import holder_of
from gpupool.policies.tenant_switch import Binding, sign, switch_key
from gpupool.policies.tiers import awake_bytes
from gpupool.reads.healing import device_actions
from gpupool.stream.messages import Desired, DesiredInstance, InstanceFact

_MOST_LOGS: Final = 16
"""Of one node that are told in turn."""


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
        .select_related("version", "node")
        .order_by("pk")
    )
    holders = [holder_of(instance.pk) for instance in instances]
    claims: dict[str, list[Lease]] = {}
    held = Lease.objects.filter(holder__in=holders, released_at__isnull=True).select_related("device")
    for lease in held.order_by("pk"):
        claims.setdefault(lease.holder, []).append(lease)
    rows = [_row(instance, claims.get(holder_of(instance.pk), [])) for instance in instances]
    known = {row.instance_id for row in rows}
    rows += [_stop_row(fact) for fact in orphans if fact.instance_id not in known]
    return Desired(
        revision=revision,
        instances=rows,
        actions=device_actions(node_id),
        event_sequence=kept_events(node_id),
        logs=wanted_logs(node_id),
    )


def wanted_logs(node_id: UUID) -> list[UUID]:
    """Instances of the node whose log somebody reads now, those first that were asked for last."""
    read = InstanceLog.objects.filter(instance__node_id=node_id, wanted_until__gt=timezone.now())
    return list(read.order_by("-wanted_until", "pk").values_list("instance_id", flat=True)[:_MOST_LOGS])


def kept_events(node_id: UUID) -> int:
    """Up to where the node's events of this boot are kept: agents tell them in order, and each until it is kept."""
    events = DeviceEvent.objects.filter(node_id=node_id, boot_id=F("node__boot_id"))
    newest: int | None = events.aggregate(newest=Max("sequence"))["newest"]
    return newest or 0


def _row(instance: Instance, leases: list[Lease]) -> DesiredInstance:
    version = instance.version
    # The host's memory is claimed beside the devices: to the engine it is no device.
    own = [lease for lease in leases if lease.device.kind == version.device_kind]
    return DesiredInstance(
        instance_id=instance.pk,
        state=_state(instance, own),
        lease_id=instance.lease_id or 0,
        fencing_token=instance.fencing_token,
        device_ids=[lease.device.stable_id for lease in own],
        memory_bytes=version.memory_bytes,
        engine=instance.engine,
        served_name=version.served_name,
        artefact_uri=version.artefact_uri,
        engine_args=version.engine_args,
        share=version.share,
        whole_device=version.whole_device,
        host_memory_bytes=instance.host_memory_bytes,
        priority=instance.priority,
        tenant_id=instance.tenant_id,
        signature=_signature(instance),
        isolation=version.isolation,
        manifest=version.manifest,
        verify_seconds=settings.GATEHOUSE.verify_seconds,
        device_seconds=_device_seconds(version),
    )


def _state(instance: Instance, leases: list[Lease]) -> str:
    if instance.desire == InstanceDesire.STOPPED or not leases:
        return "stopped"  # without a claim it may not run, whatever was wished: the device is not its own
    needed, beside = instance.version.memory_bytes, instance.version.host_memory_bytes
    short = any(lease.memory_bytes < awake_bytes(needed, beside, lease.device.kind) for lease in leases)
    if short and State(instance.state) not in UP:
        return "asleep"  # it gave back what it did not need asleep, and wakes once it has claimed it again
    return "running" if instance.desire == InstanceDesire.RUNNING else "asleep"


def _signature(instance: Instance) -> str:
    if instance.tenant_id is None or instance.node is None:
        return ""
    binding = Binding(instance.tenant_id, instance.pk, instance.fencing_token)
    return sign(switch_key(instance.node.token_digest), binding)


def _device_seconds(version: ModelVersion) -> float:
    """The version's own, or the longest of the setting and what its engine takes."""
    if version.device_seconds is not None:
        return version.device_seconds
    known = engines().get(version.engine)
    return max(settings.GATEHOUSE.device_load_seconds, (known and known.device_seconds) or 0.0)


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

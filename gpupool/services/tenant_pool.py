"""Instances that tenants acquire for themselves: reused where one is there, started where none is, let go to sleep."""

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from core.epochs import Section
from core.telemetry import instances as metrics
from gpupool.leases.fencing import Fence
from gpupool.models import Instance, InstanceDesire, InstanceState, Model, ModelVersion, VersionState
from gpupool.policies.asleep_pool import Reuse, StartAnother, choose, reuse_ratio
from gpupool.policies.instance import State
from gpupool.policies.tiers import Tier, tier_of
from gpupool.reads.instances import pooled_view
from gpupool.services.changes import Changes
from gpupool.services.instances import lock_instance, request_instance
from gpupool.services.sleeping import sleep_instance, wake_instance
from tenants.actor import Actor
from tenants.models import Tenant
from tenants.services import InvalidInput, record_audit


@dataclass(frozen=True, slots=True)
class Acquired:
    """What a tenant got; `tier` is how far it was from serving then."""

    instance: Instance
    reused: bool
    tier: Tier


@transaction.atomic
def acquire_instance(version_id: UUID, tenant_id: UUID, *, actor: Actor) -> Acquired:
    """An instance of the version that serves this tenant and no other: its own one woken, a free one bound to it, or
    a new one. Acquiring again gives the same one.

    Raises ModelVersion.DoesNotExist; InvalidInput for a version that does not serve, or a tenant that does not exist
    or may not have it.
    """
    # One acquisition of a model at a time: two of one tenant must not start two. Not by the version's lock: whoever
    # has an instance's takes that one after it, when the instance becomes ready.
    version = ModelVersion.objects.select_related("model").get(pk=version_id)
    Model.objects.select_for_update(no_key=True).get(pk=version.model_id)
    _check(version, tenant_id)
    rows = Instance.objects.filter(version=version, pooled=True).exclude(desire=InstanceDesire.STOPPED)
    match choose([pooled_view(row) for row in rows.exclude(state=InstanceState.STOPPED)], tenant_id):
        case Reuse(instance_id=instance_id, bind=bind):
            instance, reused = lock_instance(instance_id), True
            if bind:
                _bind(instance, tenant_id, actor=actor)
        case StartAnother():
            instance, reused = request_instance(version_id, actor=actor, tenant_id=tenant_id, pooled=True), False
    tier = tier_of(State(instance.state), has_process=instance.pid is not None)
    Instance.objects.filter(pk=instance.pk).update(
        acquisitions=F("acquisitions") + 1, reuses=F("reuses") + int(reused), last_used_at=timezone.now()
    )
    record_audit(
        "instance.acquired",
        subject=instance,
        actor=actor,
        tenant_id=tenant_id,
        after={"reused": reused, "tier": tier, "version": version.name, "model": version.model.name},
    )
    wake_instance(instance.pk, actor=actor, reason="A tenant acquired it.")
    instance.refresh_from_db()
    transaction.on_commit(lambda: _count(reused=reused))
    return Acquired(instance, reused, tier)


@transaction.atomic
def release_instance(instance_id: UUID, *, actor: Actor, reason: str = "", fence: Fence | None = None) -> Instance:
    """The tenant needs it no more for now: it sleeps, or is staged, and is there when it is acquired again.

    Raises Instance.DoesNotExist, Superseded; InvalidInput for one that was not acquired or has no place yet.
    """
    instance = lock_instance(instance_id)
    if not instance.pooled:
        raise InvalidInput("instance", "It is one of its version's replicas, which no tenant acquired.")
    record_audit("instance.released", subject=instance, actor=actor, tenant_id=instance.tenant_id)
    return sleep_instance(instance_id, actor=actor, reason=reason or "It was released.", staged=True, fence=fence)


def _check(version: ModelVersion, tenant_id: UUID) -> None:
    if version.state != VersionState.SERVING:
        raise InvalidInput("version", f"{version.model.name} {version.name} is {version.state}, so none of it starts.")
    if not Tenant.objects.filter(pk=tenant_id).exists():
        raise InvalidInput("tenant", "There is no such tenant.")
    owners = {owner for owner in (version.tenant_id, version.model.tenant_id) if owner is not None}
    if owners - {tenant_id}:
        raise InvalidInput("tenant", "It is another tenant's own.")


def _bind(instance: Instance, tenant_id: UUID, *, actor: Actor) -> None:
    """Put the tenant's name on one that sleeps; its node checks the signature of the row before it wakes it."""
    instance.tenant_id = tenant_id
    instance.save(update_fields=["tenant_id"])
    record_audit(
        "instance.bound", subject=instance, actor=actor, tenant_id=tenant_id, after={"token": instance.fencing_token}
    )
    changes = Changes()
    if instance.node_id is not None:
        changes.add(Section.DESIRED, instance.node_id)
    changes.add(Section.ENDPOINTS, instance.pk)
    changes.publish()


def _count(*, reused: bool) -> None:
    metrics.acquisitions.labels("reused" if reused else "started").inc()
    totals = Instance.objects.filter(pooled=True).aggregate(all=Sum("acquisitions"), again=Sum("reuses"))
    ratio = reuse_ratio(acquisitions=totals["all"] or 0, reuses=totals["again"] or 0)
    if ratio is not None:
        metrics.reuse_ratio.set(ratio)

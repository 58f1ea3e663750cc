"""A version that cannot be loaded gives way to the last one that could."""

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Instance, InstanceState, ModelVersion, VersionState
from gpupool.models.catalog import RUNS
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit


@transaction.atomic
def roll_back_version(
    version_id: UUID, to_version_id: UUID, *, reason: str, actor: Actor, fence: Fence | None = None
) -> ModelVersion:
    """Take the version out of service, and serve the other with at least as many replicas; returns the other.

    The version stays admitted, with no replicas: an operator may serve it again. Nothing changes where it serves no
    more, was ready meanwhile, or the other was never stable or was retired: what somebody took out stays out.
    Raises ModelVersion.DoesNotExist, Superseded.
    """
    check_fence(fence)
    rows = ModelVersion.objects.select_for_update(of=("self",), no_key=True).select_related("model").order_by("pk")
    found = {row.pk: row for row in rows.filter(pk__in=(version_id, to_version_id))}
    if version_id not in found or to_version_id not in found:
        raise ModelVersion.DoesNotExist("one of the versions is gone")
    failed, stable = found[version_id], found[to_version_id]
    overtaken = failed.state != VersionState.SERVING or failed.last_stable_at is not None
    if (
        overtaken
        or stable.last_stable_at is None
        or stable.state not in RUNS
        or (stable.model_id, stable.tenant_id) != (failed.model_id, failed.tenant_id)
    ):
        return stable
    before = {"serving": failed.name, "replicas": stable.replicas, "state": stable.state}
    stable.state, stable.state_reason = VersionState.SERVING, reason
    stable.replicas = max(stable.replicas, failed.replicas)
    failed.state, failed.state_reason, failed.replicas = VersionState.ADMITTED, reason, 0
    failed.rolled_back_at = timezone.now()  # served again, it is tried anew
    failed.save(update_fields=["state", "state_reason", "replicas", "rolled_back_at"])
    stable.save(update_fields=["state", "state_reason", "replicas"])
    record_audit(
        "model_version.rolled_back",
        subject=failed,
        actor=actor,
        tenant_id=failed.owner_id,
        before=before,
        after={"serving": stable.name, "replicas": stable.replicas, "reason": reason},
    )
    changes = Changes()
    changes.add(Section.MODELS, failed.model_id)
    versions = (failed.pk, stable.pk)
    instances = Instance.objects.filter(version__in=versions).exclude(state=InstanceState.STOPPED)
    for pk in instances.values_list("pk", flat=True):
        changes.add(Section.ENDPOINTS, pk)
    changes.add(Section.POOL, failed.model_id)
    changes.publish()
    return stable

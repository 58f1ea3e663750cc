"""What the pool holds about tenants: private models with all that runs of them, and training; see tenants.erasure."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django.db.models import Q

from core.epochs import Section
from core.refusals import Conflict
from gpupool import models as rows
from gpupool.models.training import Adapter, FineTuningEvent, FineTuningJob, TrainingFile
from gpupool.policies.training import ENDED
from gpupool.services.memory_history import forget_tenant
from gpupool.training.settings import training_folders
from tenants.erasure import Held, hold, publish, sweep_with, watch

_OWNERS: Final = ("version__model__tenant_id", "version__tenant_id", "tenant_id")
"""What leads from an instance to whose it is."""

_OVER: Final = (rows.InstanceState.STOPPED, rows.InstanceState.FAILED)

HELD: Final = (
    Held(rows.Model, tenant="tenant_id"),
    Held(rows.ModelVersion, tenant="model__tenant_id", also=("tenant_id",)),
    Held(FineTuningJob, tenant="tenant_id"),
    Held(FineTuningEvent, tenant="job__tenant_id", bulky=True),
    Held(Adapter, tenant="tenant_id"),
    Held(TrainingFile, tenant="tenant_id"),
    Held(rows.ModelAlias, tenant="model__tenant_id"),
    Held(rows.Instance, tenant=_OWNERS[0], also=_OWNERS[1:]),
    Held(rows.InstanceEvent, tenant=f"instance__{_OWNERS[0]}", also=tuple(f"instance__{one}" for one in _OWNERS[1:])),
    Held(
        rows.InstanceLog,
        tenant=f"instance__{_OWNERS[0]}",
        also=tuple(f"instance__{one}" for one in _OWNERS[1:]),
        seen_by_tenant=frozenset({"id", "instance", "told_at"}),
        bulky=True,
    ),
    Held(rows.Reservation, tenant="tenant_id"),
    Held(rows.Lease, tenant="tenant_id", kept="what the pool's memory was claimed for, by ids only"),
)

NOBODYS: Final = frozenset(
    f"gpupool.{name}"
    for name in (
        "EngineSwitch",
        "Node",
        "Device",
        "DeviceEvent",
        "DeviceMinute",
        "MemoryFrame",
        "HealingAction",
        "XidRule",
        "FencingBase",
        "StoreRevision",
        "StoreLease",
        "StoreEntry",
        "StoreEvent",
    )
)
"""Models whose rows tell of no tenant and nobody."""


def register() -> None:
    """Say all of it; when Django starts."""
    hold(*HELD)
    watch(_in_the_way)
    publish(_to_publish)
    sweep_with(_remove_files)
    sweep_with(forget_tenant)


def _in_the_way(tenant_id: UUID) -> Sequence[str]:
    found: list[str] = []
    jobs = FineTuningJob.objects.filter(tenant_id=tenant_id).filter(~Q(state__in=ENDED) | Q(runner_live=True))
    if running := jobs.count():
        found.append(f"{running} of its fine-tuning jobs have not ended: cancel them first.")
    instances = rows.Instance.objects.filter(_of(tenant_id)).exclude(state__in=_OVER)
    if names := [str(pk) for pk in instances.order_by("pk").values_list("pk", flat=True)[:10]]:
        found.append(f"Instances of its own are not stopped: {', '.join(names)}. Stop them first.")
    if rows.Lease.objects.filter(tenant_id=tenant_id, released_at__isnull=True).exists():
        found.append("Memory of devices is still claimed for it.")
    return found


def _of(tenant_id: UUID) -> Q:
    """Instances of its own: of its private models, its versions of others' models, or bound to it."""
    own = Q(version__model__tenant_id=tenant_id) | Q(version__tenant_id=tenant_id)
    return own | Q(tenant_id=tenant_id)


def _remove_files(tenant_id: UUID) -> None:
    """Training files, what jobs left, and adapters. Raises Conflict where some stay: nobody would find them later."""
    folders = training_folders()
    places = [folders.tenant_files(tenant_id)]
    folders.drop_tenant_files(tenant_id)
    for job_id in FineTuningJob.objects.filter(tenant_id=tenant_id).values_list("pk", flat=True):
        folders.drop_job(job_id)
        places.append(folders.job(job_id))
    for adapter_id in Adapter.objects.filter(tenant_id=tenant_id).values_list("pk", flat=True):
        folders.drop_adapter(adapter_id)
        places.append(folders.adapter(adapter_id))
    if left := sum(path.exists() for path in places):
        raise Conflict(f"{left} folders of its trainings cannot be deleted: see that the web process and worker may.")


def _to_publish(tenant_id: UUID) -> Sequence[tuple[Section, UUID]]:
    own = Q(tenant_id=tenant_id) | Q(versions__tenant_id=tenant_id)
    models = rows.Model.objects.filter(own).order_by("pk").values_list("pk", flat=True).distinct()
    instances = rows.Instance.objects.filter(_of(tenant_id)).order_by("pk")
    return [
        *((Section.MODELS, pk) for pk in models),
        *((Section.ENDPOINTS, pk) for pk in instances.values_list("pk", flat=True)),
    ]

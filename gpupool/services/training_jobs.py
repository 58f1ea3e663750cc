"""Fine-tuning jobs as their tenants see them: asked for, and cancelled. What runs them is in training_runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from core.refusals import Conflict, InvalidInput
from gpupool.models import FineTuningEvent, FineTuningJob, ModelVersion, TrainingFile, VersionState
from gpupool.policies.training import (
    LARGEST_SEED,
    JobState,
    check_step,
    hyperparameter_fault,
    metadata_fault,
    suffix_fault,
)
from gpupool.services.training_files import Whose, lock_training
from tenants.actor import Actor
from tenants.services import record_audit

MOST_WAITING: Final = 100
METHODS: Final = ("supervised", "dpo")


@dataclass(frozen=True, slots=True)
class JobWish:
    """What a client asks for; `seed` None has one drawn by whoever parses it."""

    model: str
    training_file_id: UUID | None  # None: what was given is no id of a file
    seed: int
    validation_file_id: UUID | None = None
    suffix: str = ""
    method: str = "supervised"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@transaction.atomic
def create_fine_tuning_job(wish: JobWish, *, whose: Whose, actor: Actor) -> FineTuningJob:
    """Put a job in the queue. Whether its key may train that model has been asked.

    Raises InvalidInput naming what is wrong, and Conflict where too many wait.
    """
    _check(wish)
    lock_training(whose.tenant_id)
    training_file_id = _check_file(whose.tenant_id, wish.training_file_id, "training_file")
    if wish.validation_file_id is not None:
        _check_file(whose.tenant_id, wish.validation_file_id, "validation_file")
    versions = ModelVersion.objects.filter(model__name=wish.model, state=VersionState.SERVING)
    version = versions.filter(Q(tenant_id=None) | Q(tenant_id=whose.tenant_id)).order_by("-pk").first()
    if version is None:
        raise InvalidInput("model", "The model has no version to train on.")
    waiting = FineTuningJob.objects.filter(tenant_id=whose.tenant_id, state=JobState.QUEUED).count()
    if waiting >= MOST_WAITING:
        raise Conflict(f"{MOST_WAITING} jobs of this tenant wait already.")
    job = FineTuningJob.objects.create(
        tenant_id=whose.tenant_id,
        tenant_slug=whose.tenant_slug,
        key_id=whose.key_id,
        subject_id=whose.subject_id,
        model=wish.model,
        version=version,
        suffix=wish.suffix,
        training_file_id=training_file_id,
        validation_file_id=wish.validation_file_id,
        hyperparameters=dict(wish.hyperparameters),
        method=wish.method,
        seed=wish.seed,
        metadata=dict(wish.metadata),
    )
    record_audit(
        "fine_tuning_job.created",
        subject=job,
        actor=actor,
        tenant_id=job.tenant_id,
        after={"model": job.model, "version": str(version.pk), "method": job.method, "suffix": job.suffix},
    )
    FineTuningEvent.objects.create(job=job, message="The job waits for a trainer.")
    return job


@transaction.atomic
def cancel_fine_tuning_job(job_id: UUID, *, actor: Actor, tenant_id: UUID | None = None) -> FineTuningJob:
    """End it: it counts as cancelled at once, and its trainer is ended by the worker's next look, within seconds.

    `tenant_id`: only a job of that tenant. Raises FineTuningJob.DoesNotExist, and Conflict for one that has ended.
    """
    jobs = FineTuningJob.objects.select_for_update(of=("self",))
    job = jobs.get(pk=job_id) if tenant_id is None else jobs.get(pk=job_id, tenant_id=tenant_id)
    if job.ended:
        raise Conflict(f"The job has ended already: it is {job.state}.")
    check_step(job.state, JobState.CANCELLED)
    before, job.state, job.finished_at = job.state, JobState.CANCELLED, timezone.now()
    job.save(update_fields=["state", "finished_at"])
    record_audit(
        "fine_tuning_job.cancelled",
        subject=job,
        actor=actor,
        tenant_id=job.tenant_id,
        before={"state": before},
        after={"state": job.state},
    )
    FineTuningEvent.objects.create(job=job, message="The job was cancelled.")
    return job


def _check(wish: JobWish) -> None:
    if wish.suffix and (fault := suffix_fault(wish.suffix)) is not None:
        raise InvalidInput("suffix", fault)
    if wish.method not in METHODS:
        raise InvalidInput("method", f"Methods are {' and '.join(METHODS)}.")
    if not 0 <= wish.seed <= LARGEST_SEED:
        raise InvalidInput("seed", f"A seed is a whole number from 0 to {LARGEST_SEED}.")
    if (fault := metadata_fault(wish.metadata)) is not None:
        raise InvalidInput("metadata", fault)
    for name, value in wish.hyperparameters.items():
        if (fault := hyperparameter_fault(name, value)) is not None:
            raise InvalidInput("hyperparameters", fault)


def _check_file(tenant_id: UUID, file_id: UUID | None, name: str) -> UUID:
    """Another tenant's file is told as one that does not exist."""
    if file_id is None or not TrainingFile.objects.filter(pk=file_id, tenant_id=tenant_id).exists():
        raise InvalidInput(name, "There is no such file.")
    return file_id

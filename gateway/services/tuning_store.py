"""The TuningStore over PostgreSQL and the folder of trainings, on lanes of its own."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from django.db.models import QuerySet

from core.errors import InvalidRequest
from core.refusals import Conflict, InvalidInput
from gateway.relay.tuning.names import CHECKPOINT, EVENT, FILE, JOB, name_of
from gateway.relay.tuning.store import Caller, DoesNotFit, FileNotFound, JobNotFound, NewJob, Page, TuningUnavailable
from gateway.services.lanes import DatabaseLanes
from gpupool.models import Adapter, FineTuningEvent, FineTuningJob, TrainingFile
from gpupool.policies.training import AUTO, JobState
from gpupool.services.training_files import Whose, create_training_file, delete_training_file
from gpupool.services.training_jobs import JobWish, cancel_fine_tuning_job, create_fine_tuning_job
from gpupool.training.settings import TrainingSettings
from tenants.actor import Actor, machine_actor

DEADLINE_SECONDS: Final = 15.0
_LANES: Final = 2
_RETRY_SECONDS: Final = 5.0
_DEFAULTS: Final = ("n_epochs", "batch_size", "learning_rate_multiplier")

T = TypeVar("T")
Row = TypeVar("Row", TrainingFile, FineTuningJob, FineTuningEvent, Adapter)


class DatabaseTuningStore:
    """See gateway.relay.tuning.store.TuningStore; used on one event loop."""

    def __init__(self, settings: TrainingSettings, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._settings = settings
        self._lanes = DatabaseLanes("tuning", count=_LANES, deadline_seconds=deadline_seconds, unavailable=_unavailable)

    async def create_file(self, caller: Caller, *, filename: str, purpose: str, body: bytes) -> bytes:
        def call() -> bytes:
            try:
                file = create_training_file(
                    body,
                    filename=filename,
                    purpose=purpose,
                    whose=_whose(caller),
                    settings=self._settings,
                    actor=_actor(caller),
                )
            except OSError as error:
                raise _unavailable() from error
            return msgspec.json.encode(_file(file))

        return await self._call(call)

    async def list_files(self, caller: Caller, page: Page, *, purpose: str | None) -> bytes:
        def call() -> bytes:
            rows = TrainingFile.objects.filter(tenant_id=caller.tenant_id)
            return _listed(rows if purpose is None else rows.filter(purpose=purpose), page, FILE, _file)

        return await self._call(call, read_only=True)

    async def get_file(self, caller: Caller, file_id: UUID) -> bytes:
        return await self._call(lambda: msgspec.json.encode(_file(_one_file(caller, file_id))), read_only=True)

    async def file_content(self, caller: Caller, file_id: UUID) -> bytes:
        def call() -> bytes:
            row = _one_file(caller, file_id)
            try:
                return self._settings.folders.file(row.tenant_id, row.sha256).read_bytes()
            except OSError as error:
                raise _unavailable() from error

        return await self._call(call, read_only=True)

    async def delete_file(self, caller: Caller, file_id: UUID) -> bytes:
        def call() -> bytes:
            try:
                delete_training_file(caller.tenant_id, file_id, folders=self._settings.folders, actor=_actor(caller))
            except TrainingFile.DoesNotExist:
                raise FileNotFound from None
            return msgspec.json.encode({"id": name_of(FILE, file_id), "object": "file", "deleted": True})

        return await self._call(call)

    async def create_job(self, caller: Caller, job: NewJob) -> bytes:
        wish = JobWish(
            model=job.model,
            training_file_id=job.training_file,
            seed=job.seed,
            validation_file_id=job.validation_file,
            suffix=job.suffix,
            method=job.method,
            hyperparameters=job.hyperparameters,
            metadata=job.metadata,
        )
        return await self._call(
            lambda: msgspec.json.encode(
                _job(create_fine_tuning_job(wish, whose=_whose(caller), actor=_actor(caller)), None)
            )
        )

    async def list_jobs(self, caller: Caller, page: Page, *, metadata: dict[str, str]) -> bytes:
        def call() -> bytes:
            rows = FineTuningJob.objects.filter(tenant_id=caller.tenant_id).select_related("adapter")
            return _listed(rows.filter(metadata__contains=metadata) if metadata else rows, page, JOB, _told)

        return await self._call(call, read_only=True)

    async def get_job(self, caller: Caller, job_id: UUID) -> bytes:
        return await self._call(lambda: msgspec.json.encode(_told(_one_job(caller, job_id))), read_only=True)

    async def cancel_job(self, caller: Caller, job_id: UUID) -> bytes:
        def call() -> bytes:
            try:
                job = cancel_fine_tuning_job(job_id, tenant_id=caller.tenant_id, actor=_actor(caller))
            except FineTuningJob.DoesNotExist:
                raise JobNotFound from None
            return msgspec.json.encode(_job(job, None))

        return await self._call(call)

    async def list_events(self, caller: Caller, job_id: UUID, page: Page) -> bytes:
        def call() -> bytes:
            rows = FineTuningEvent.objects.filter(job=_one_job(caller, job_id))
            return _listed(rows, page, EVENT, _event)

        return await self._call(call, read_only=True)

    async def list_checkpoints(self, caller: Caller, job_id: UUID, page: Page) -> bytes:
        def call() -> bytes:
            rows = Adapter.objects.filter(job=_one_job(caller, job_id)).select_related("job")
            return _listed(rows, page, CHECKPOINT, _checkpoint)

        return await self._call(call, read_only=True)

    async def aclose(self) -> None:
        """End all calls and give the connections up."""
        await self._lanes.aclose()

    async def _call(self, call: Callable[[], T], *, read_only: bool = False) -> T:
        try:
            return await self._lanes.call(call, read_only=read_only)
        except InvalidInput as error:
            raise InvalidRequest(error.message, param=error.field) from error
        except Conflict as error:
            raise DoesNotFit(error.message) from error
        except ValueError as error:  # of the database; see DatabaseLanes.call
            raise InvalidRequest(f"What was sent cannot be kept: {error}.") from error


def _unavailable() -> TuningUnavailable:
    return TuningUnavailable(retry_after_seconds=_RETRY_SECONDS)


def _whose(caller: Caller) -> Whose:
    return Whose(caller.tenant_id, caller.tenant_slug, caller.key_id, caller.subject_id)


def _actor(caller: Caller) -> Actor:
    return machine_actor(caller.key_id, caller.subject_id, request_id=caller.request_id)


def _one_file(caller: Caller, file_id: UUID) -> TrainingFile:
    row = TrainingFile.objects.filter(pk=file_id, tenant_id=caller.tenant_id).first()
    if row is None:
        raise FileNotFound
    return row


def _one_job(caller: Caller, job_id: UUID) -> FineTuningJob:
    rows = FineTuningJob.objects.filter(pk=job_id, tenant_id=caller.tenant_id)
    row = rows.select_related("adapter").first()
    if row is None:
        raise JobNotFound
    return row


def _listed(rows: QuerySet[Row], page: Page, prefix: str, told: Callable[[Row], dict[str, Any]]) -> bytes:
    """One page of a list. Raises InvalidRequest where `after` is not in it."""
    if page.after is not None:
        if not rows.filter(pk=page.after).exists():
            raise InvalidRequest("Invalid value for 'after': there is no such item here.", param="after")
        rows = rows.filter(**{"pk__gt" if page.ascending else "pk__lt": page.after})
    found = list(rows.order_by("pk" if page.ascending else "-pk")[: page.limit + 1])
    data = [told(row) for row in found[: page.limit]]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(found) > page.limit,
        }
    )


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _file(row: TrainingFile) -> dict[str, Any]:
    return {
        "id": name_of(FILE, row.pk),
        "object": "file",
        "bytes": row.bytes,
        "created_at": _seconds(row.created_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
        "expires_at": None,
    }


def _told(row: FineTuningJob) -> dict[str, Any]:
    return _job(row, getattr(row, "adapter", None))


def _job(row: FineTuningJob, adapter: Adapter | None) -> dict[str, Any]:
    chosen: Mapping[str, Any] = {**dict.fromkeys(_DEFAULTS, AUTO), **row.hyperparameters}
    error = None
    if row.state == JobState.FAILED:
        error = {"code": row.error_code, "message": row.error_message, "param": None}
    return {
        "id": name_of(JOB, row.pk),
        "object": "fine_tuning.job",
        "created_at": _seconds(row.created_at),
        "error": error,
        "estimated_finish": None,
        "fine_tuned_model": None if adapter is None else adapter.name,
        "finished_at": _seconds(row.finished_at),
        "hyperparameters": chosen,
        "integrations": [],
        "metadata": row.metadata,
        "method": {"type": row.method, row.method: {"hyperparameters": chosen}},
        "model": row.model,
        "organization_id": row.tenant_slug,
        "result_files": [],
        "seed": row.seed,
        "status": str(row.state),
        "trained_tokens": row.trained_tokens,
        "training_file": name_of(FILE, row.training_file_id),
        "user_provided_suffix": row.suffix or None,
        "validation_file": None if row.validation_file_id is None else name_of(FILE, row.validation_file_id),
    }


def _event(row: FineTuningEvent) -> dict[str, Any]:
    return {
        "id": name_of(EVENT, row.pk),
        "object": "fine_tuning.job.event",
        "created_at": _seconds(row.created_at),
        "level": row.level,
        "message": row.message,
        "type": row.kind,
        "data": row.data,
    }


def _checkpoint(row: Adapter) -> dict[str, Any]:
    """The one that there is: the end of the training."""
    job = row.job
    assert job is not None
    return {
        "id": name_of(CHECKPOINT, row.pk),
        "object": "fine_tuning.job.checkpoint",
        "created_at": _seconds(row.created_at),
        "fine_tuned_model_checkpoint": row.name,
        "fine_tuning_job_id": name_of(JOB, job.pk),
        "metrics": {},
        "step_number": job.steps or 0,
    }

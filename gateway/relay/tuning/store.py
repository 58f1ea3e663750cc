"""What the fine-tuning endpoints ask of the database; gateway.services.tuning_store answers over PostgreSQL."""

from typing import Any, ClassVar, Protocol
from uuid import UUID

import msgspec

from core.errors import InvalidRequest, Unavailable


class TuningUnavailable(Unavailable):
    """The database or the folder of trainings cannot be used now."""

    code: ClassVar[str] = "fine_tuning_unavailable"
    default_message: ClassVar[str] = "Files and fine-tuning jobs cannot be read or changed now."


class NotConfigured(Unavailable):
    """Whoever operates this installation has named no trainer."""

    code: ClassVar[str] = "not_configured"
    default_message: ClassVar[str] = "Fine-tuning is not available here: no trainer is configured."


class FileNotFound(InvalidRequest):
    """Unknown, deleted and another tenant's: the same bytes, so ids cannot be probed."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "file_not_found"
    default_message: ClassVar[str] = "There is no such file."


class JobNotFound(InvalidRequest):
    """As for files."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "fine_tuning_job_not_found"
    default_message: ClassVar[str] = "There is no such fine-tuning job."


class DoesNotFit(InvalidRequest):
    """It does not fit the state that things are in."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "conflict"


class Caller(msgspec.Struct, frozen=True):
    """On whose behalf."""

    tenant_id: UUID
    tenant_slug: str
    key_id: UUID | None
    subject_id: UUID | None
    request_id: UUID


class Page(msgspec.Struct, frozen=True):
    """Which part of a list, newest first unless `ascending`; behind `after`, which has to be in it."""

    limit: int
    after: UUID | None = None
    ascending: bool = False


class NewJob(msgspec.Struct, frozen=True):
    """A job as it was asked for, with ids as rows have them."""

    model: str
    training_file: UUID | None
    validation_file: UUID | None
    suffix: str
    seed: int
    method: str
    hyperparameters: dict[str, Any]
    metadata: dict[str, str]


class TuningStore(Protocol):
    """Every answer is JSON, but for a file's content. All raise TuningUnavailable within a few seconds, InvalidRequest
    for what is refused, and FileNotFound or JobNotFound for what is not the caller's tenant's.
    """

    async def create_file(self, caller: Caller, *, filename: str, purpose: str, body: bytes) -> bytes:
        """Keep a file."""

    async def list_files(self, caller: Caller, page: Page, *, purpose: str | None) -> bytes:
        """The tenant's files."""

    async def get_file(self, caller: Caller, file_id: UUID) -> bytes:
        """One of them."""

    async def file_content(self, caller: Caller, file_id: UUID) -> bytes:
        """Its bytes."""

    async def delete_file(self, caller: Caller, file_id: UUID) -> bytes:
        """Delete it."""

    async def create_job(self, caller: Caller, job: NewJob) -> bytes:
        """Put a job in the queue."""

    async def list_jobs(self, caller: Caller, page: Page, *, metadata: dict[str, str]) -> bytes:
        """The tenant's jobs, those with all of that metadata."""

    async def get_job(self, caller: Caller, job_id: UUID) -> bytes:
        """One of them."""

    async def cancel_job(self, caller: Caller, job_id: UUID) -> bytes:
        """End it."""

    async def list_events(self, caller: Caller, job_id: UUID, page: Page) -> bytes:
        """What happened in it."""

    async def list_checkpoints(self, caller: Caller, job_id: UUID, page: Page) -> bytes:
        """What it made."""

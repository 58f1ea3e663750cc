"""Files to train on: kept, listed by their tenant alone, and deleted."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Sum

from core.refusals import Conflict, InvalidInput
from gpupool.models import FineTuningJob, TrainingFile
from gpupool.policies.training import ENDED
from gpupool.policies.training_data import BadExample, count_examples
from gpupool.training.folders import TrainingFolders
from gpupool.training.settings import TrainingSettings
from tenants.actor import Actor
from tenants.services import record_audit

PURPOSE: Final = "fine-tune"
MOST_FILES: Final = 1000
_NAME_LENGTH: Final = 255
_FORGOTTEN_SECONDS: Final = 3600
_LOCKS: Final = 0x7472_6E00  # with a tenant's number, beside other advisory locks


@dataclass(frozen=True, slots=True)
class Whose:
    """The tenant, and the key or token's subject, on whose behalf something is made."""

    tenant_id: UUID
    tenant_slug: str
    key_id: UUID | None
    subject_id: UUID | None


@transaction.atomic
def create_training_file(
    body: bytes, *, filename: str, purpose: str, whose: Whose, settings: TrainingSettings, actor: Actor
) -> TrainingFile:
    """Check the examples and keep them.

    Raises InvalidInput naming what is wrong, with the number of the first line at fault; Conflict where the tenant has
    as much as it may; OSError where it cannot be written.
    """
    if purpose != PURPOSE:
        raise InvalidInput("purpose", f"Only files with the purpose '{PURPOSE}' are taken here.")
    _check_name(filename)
    if len(body) > settings.file_cap_bytes:
        raise InvalidInput("file", f"The file is larger than {settings.file_cap_bytes} bytes.")
    try:
        examples = count_examples(body)
    except BadExample as error:
        raise InvalidInput("file", error.message) from error
    _lock(whose.tenant_id)
    files = TrainingFile.objects.filter(tenant_id=whose.tenant_id)
    held = files.aggregate(total=Sum("bytes"))["total"] or 0
    if held + len(body) > settings.tenant_bytes:
        raise Conflict(f"The files of this tenant may be {settings.tenant_bytes} bytes together: delete some first.")
    if files.count() >= MOST_FILES:
        raise Conflict(f"A tenant has at most {MOST_FILES} files: delete some first.")
    digest = settings.folders.keep_file(whose.tenant_id, body)
    file = TrainingFile.objects.create(
        tenant_id=whose.tenant_id,
        key_id=whose.key_id,
        subject_id=whose.subject_id,
        filename=filename,
        purpose=purpose,
        bytes=len(body),
        examples=examples,
        sha256=digest,
    )
    record_audit(
        "training_file.created",
        subject=file,
        actor=actor,
        tenant_id=whose.tenant_id,
        after={"bytes": len(body), "examples": examples, "sha256": digest},
    )
    return file


@transaction.atomic
def delete_training_file(tenant_id: UUID, file_id: UUID, *, folders: TrainingFolders, actor: Actor) -> None:
    """Raises TrainingFile.DoesNotExist, and Conflict while a job that has not ended needs it."""
    _lock(tenant_id)
    file = TrainingFile.objects.select_for_update().get(pk=file_id, tenant_id=tenant_id)
    waiting = FineTuningJob.objects.filter(tenant_id=tenant_id).exclude(state__in=ENDED)
    if waiting.filter(training_file_id=file_id).exists() or waiting.filter(validation_file_id=file_id).exists():
        raise Conflict("A fine-tuning job that has not ended needs this file: cancel the job first.")
    record_audit(
        "training_file.deleted", subject=file, actor=actor, tenant_id=tenant_id, before={"sha256": file.sha256}
    )
    digest = file.sha256
    file.delete()
    transaction.on_commit(lambda: _drop_unused(tenant_id, digest, folders))


@transaction.atomic
def _drop_unused(tenant_id: UUID, digest: str, folders: TrainingFolders) -> None:
    """Delete the bytes, unless another row has the same."""
    _lock(tenant_id)
    if not TrainingFile.objects.filter(tenant_id=tenant_id, sha256=digest).exists():
        folders.drop_file(tenant_id, digest)


def sweep_training_files(*, folders: TrainingFolders, now: datetime) -> int:
    """Delete bytes that no row has, of uploads that were broken off; returns how many. Safe to run twice."""
    swept = 0
    for folder in (folders.root / "files").glob("*"):
        try:
            tenant_id = UUID(folder.name)
        except ValueError:
            continue
        for path in folder.glob("*"):
            if _is_older(path, now.timestamp() - _FORGOTTEN_SECONDS):
                _drop_unused(tenant_id, path.name, folders)
                swept += not path.exists()
    return swept


def _is_older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except OSError:  # renamed by an upload that ended, or deleted, since it was listed
        return False


def lock_training(tenant_id: UUID) -> None:
    """What one tenant's files and jobs are made and deleted under, one after the other."""
    _lock(tenant_id)


def _lock(tenant_id: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCKS, str(tenant_id)])


def _check_name(filename: str) -> None:
    """It is shown and never opened; a path in it would mislead whoever saves the file under it."""
    if not 0 < len(filename) <= _NAME_LENGTH:
        raise InvalidInput("file", f"A file's name has 1 to {_NAME_LENGTH} characters.")
    if "/" in filename or "\\" in filename or filename in (".", "..") or not filename.isprintable():
        raise InvalidInput("file", "A file's name is a plain name: no folders, no control characters.")

"""Files to train on and jobs, as services: what is kept, what is refused, and what a job needs."""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from core.ids import uuid7
from core.refusals import Conflict, InvalidInput
from gpupool.models import FineTuningJob, ModelVersion, TrainingFile, VersionState
from gpupool.policies.training import ALLOWED, JobState
from gpupool.services.training_files import Whose, create_training_file, delete_training_file, sweep_training_files
from gpupool.services.training_jobs import JobWish, cancel_fine_tuning_job, create_fine_tuning_job
from gpupool.training.settings import TrainingSettings
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.factories import make_fine_tuning_job, make_model, make_tenant, make_version
from tests.training import EXAMPLE, training_settings_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def version() -> ModelVersion:
    return make_version(make_model("llama"))


@pytest.fixture
def whose() -> Whose:
    tenant = make_tenant("acme")
    return Whose(tenant.pk, tenant.slug, uuid7(), None)


@pytest.fixture
def settings(tmp_path: Path) -> TrainingSettings:
    return training_settings_for(tmp_path, file_cap_bytes=10_000, tenant_bytes=len(EXAMPLE) * 5)


def upload(whose: Whose, settings: TrainingSettings, body: bytes = EXAMPLE, **more: Any) -> TrainingFile:
    given = {"filename": "a.jsonl", "purpose": "fine-tune", **more}
    return create_training_file(body, whose=whose, settings=settings, actor=SYSTEM, **given)


def test_a_file_is_kept_by_its_digest_in_its_tenants_folder(whose: Whose, settings: TrainingSettings) -> None:
    file = upload(whose, settings)
    assert file.sha256 == hashlib.sha256(EXAMPLE).hexdigest()
    path = settings.folders.root / "files" / whose.tenant_id.hex / file.sha256
    assert path.read_bytes() == EXAMPLE
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("purpose", {"purpose": "assistants"}),
        ("file", {"filename": ""}),
        ("file", {"filename": "../../etc/passwd"}),
        ("file", {"filename": "..\\x"}),
        ("file", {"filename": ".."}),
        ("file", {"filename": "a\0b"}),
        ("file", {"filename": "a\nb"}),
        ("file", {"filename": "x" * 256}),
        ("file", {"body": b"x" * 10_001}),
        ("file", {"body": b""}),
    ],
)
def test_what_is_wrong_with_a_file_is_named_and_nothing_is_kept(
    whose: Whose, settings: TrainingSettings, field: str, more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        upload(whose, settings, **more)
    assert refused.value.field == field
    assert not TrainingFile.objects.exists()
    assert not list(settings.folders.root.rglob("*"))


def test_a_tenant_keeps_no_more_than_it_may(whose: Whose, settings: TrainingSettings) -> None:
    for _ in range(5):
        upload(whose, settings)
    with pytest.raises(Conflict, match="delete some first"):
        upload(whose, settings)


def test_the_bytes_go_with_the_last_file_that_has_them(
    whose: Whose, settings: TrainingSettings, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    first, second = upload(whose, settings), upload(whose, settings)
    path = settings.folders.file(whose.tenant_id, first.sha256)
    for file, stays in ((first, True), (second, False)):
        with django_capture_on_commit_callbacks(execute=True):
            delete_training_file(whose.tenant_id, file.pk, folders=settings.folders, actor=SYSTEM)
        assert path.exists() is stays


def test_nobody_deletes_anothers_file(whose: Whose, settings: TrainingSettings) -> None:
    file = upload(whose, settings)
    with pytest.raises(TrainingFile.DoesNotExist):
        delete_training_file(make_tenant("other").pk, file.pk, folders=settings.folders, actor=SYSTEM)


def test_files_that_go_while_it_is_swept_end_no_sweep(whose: Whose, settings: TrainingSettings) -> None:
    swept = settings.folders.file(whose.tenant_id, settings.folders.keep_file(whose.tenant_id, b"broken off"))
    for name in ("0", "g"):  # before and behind it
        (swept.parent / name).symlink_to("nowhere")
    (settings.folders.root / "files" / uuid7().hex).write_text("no folder")
    sweep_training_files(folders=settings.folders, now=timezone.now() + timedelta(hours=2))
    assert not swept.exists()


def test_bytes_that_no_row_has_are_swept_when_they_are_old(whose: Whose, settings: TrainingSettings) -> None:
    kept = settings.folders.file(whose.tenant_id, upload(whose, settings).sha256)
    left = settings.folders.file(whose.tenant_id, settings.folders.keep_file(whose.tenant_id, b"left"))
    now = timezone.now()
    assert sweep_training_files(folders=settings.folders, now=now) == 0
    assert sweep_training_files(folders=settings.folders, now=now + timedelta(hours=2)) == 1
    assert kept.exists()
    assert not left.exists()


def wish(file_id: UUID | None, **more: Any) -> JobWish:
    return JobWish(**{"model": "llama", "training_file_id": file_id, "seed": 1, **more})


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("training_file", {"training_file_id": None}),
        ("training_file", {"training_file_id": uuid7()}),
        ("validation_file", {"validation_file_id": uuid7()}),
        ("suffix", {"suffix": "x" * 65}),
        ("suffix", {"suffix": "../up"}),
        ("suffix", {"suffix": "a..b"}),
        ("suffix", {"suffix": "a b"}),
        ("suffix", {"suffix": "-a"}),
        ("method", {"method": "reinforcement"}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**31}),
        ("metadata", {"metadata": {str(n): "" for n in range(17)}}),
        ("metadata", {"metadata": {"k": "v" * 513}}),
        ("metadata", {"metadata": {"k": "\0"}}),
        ("hyperparameters", {"hyperparameters": {"n_epochs": 0}}),
        ("hyperparameters", {"hyperparameters": {"n_epochs": 1.5}}),
        ("hyperparameters", {"hyperparameters": {"batch_size": -1}}),
        ("hyperparameters", {"hyperparameters": {"learning_rate_multiplier": float("inf")}}),
        ("hyperparameters", {"hyperparameters": {"learning_rate_multiplier": float("nan")}}),
        ("hyperparameters", {"hyperparameters": {"n_epochs": "many"}}),
        ("hyperparameters", {"hyperparameters": {"n_epochs": True}}),
    ],
)
def test_what_is_wrong_with_a_job_is_named_and_nothing_is_queued(
    whose: Whose, settings: TrainingSettings, version: ModelVersion, field: str, more: dict[str, Any]
) -> None:
    file = upload(whose, settings)
    with pytest.raises(InvalidInput) as refused:
        create_fine_tuning_job(wish(file.pk, **more), whose=whose, actor=SYSTEM)
    assert refused.value.field == field
    assert not FineTuningJob.objects.exists()


def test_a_job_takes_the_version_that_serves(whose: Whose, settings: TrainingSettings, version: ModelVersion) -> None:
    newer = make_version(version.model)
    ModelVersion.objects.filter(pk=newer.pk).update(state=VersionState.RETIRED)
    job = create_fine_tuning_job(wish(upload(whose, settings).pk), whose=whose, actor=SYSTEM)
    assert (job.version, job.state) == (version, JobState.QUEUED)
    assert AuditEvent.objects.get(action="fine_tuning_job.created").subject_id == job.pk


def test_a_job_learns_of_its_own_tenants_files_alone(
    whose: Whose, settings: TrainingSettings, version: ModelVersion
) -> None:
    other = make_tenant("other")
    file = upload(Whose(other.pk, other.slug, None, None), settings)
    with pytest.raises(InvalidInput, match="no such file"):
        create_fine_tuning_job(wish(file.pk), whose=whose, actor=SYSTEM)


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_is_cancelled_in_the_states_that_the_table_lets_it(version: ModelVersion, state: JobState) -> None:
    job = make_fine_tuning_job(make_tenant("acme"), version, state=state)
    if JobState.CANCELLED in ALLOWED[state]:
        assert cancel_fine_tuning_job(job.pk, actor=SYSTEM).state == JobState.CANCELLED
        assert AuditEvent.objects.get(action="fine_tuning_job.cancelled").before == {"state": state}
    else:
        with pytest.raises(Conflict, match=state):
            cancel_fine_tuning_job(job.pk, actor=SYSTEM)
        job.refresh_from_db()
        assert job.state == state


def test_nobody_cancels_anothers_job(version: ModelVersion) -> None:
    job = make_fine_tuning_job(make_tenant("acme"), version)
    with pytest.raises(FineTuningJob.DoesNotExist):
        cancel_fine_tuning_job(job.pk, tenant_id=make_tenant("other").pk, actor=SYSTEM)

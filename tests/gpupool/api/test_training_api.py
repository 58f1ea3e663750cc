"""The control API of fine-tuning: platform roles look, operators end, and the log is what the trainer said."""

from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from core.ids import uuid7
from core.refusals import Conflict
from gpupool.models import FineTuningEvent, FineTuningJob
from gpupool.training.folders import TrainingFolders
from gpupool.training.settings import training_folders
from tenants.erasure import sweep
from tenants.models import PlatformRole
from tests.factories import make_fine_tuning_job, make_model, make_tenant, make_user, make_version

pytestmark = [pytest.mark.django_db]
JOBS = "/api/fine-tuning/jobs/"


def client(role: PlatformRole | None) -> APIClient:
    client = APIClient()
    if role is not None:
        client.force_authenticate(make_user(platform_role=role))
    return client


@pytest.fixture
def job() -> FineTuningJob:
    return make_fine_tuning_job(make_tenant("acme"), make_version(make_model("llama")), suffix="mine")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingFolders:
    folders = TrainingFolders(tmp_path)
    monkeypatch.setattr("gpupool.api.training.training_folders", lambda: folders)
    return folders


@pytest.mark.parametrize(
    ("role", "looks", "ends"),
    [
        (None, 401, 401),
        (PlatformRole.NONE, 403, 403),
        (PlatformRole.READ_ONLY, 200, 403),
        (PlatformRole.OPERATOR, 200, 200),
        (PlatformRole.SUPERUSER, 200, 200),
    ],
)
def test_readers_look_and_operators_end(
    job: FineTuningJob, folders: TrainingFolders, role: PlatformRole | None, looks: int, ends: int
) -> None:
    asking = client(role)
    for address in ("", f"{job.pk}/", f"{job.pk}/events/", f"{job.pk}/log/"):
        assert asking.get(JOBS + address).status_code == looks, address
    assert asking.post(f"{JOBS}{job.pk}/cancel/").status_code == ends


def test_jobs_are_found_by_tenant_state_and_model(job: FineTuningJob) -> None:
    asking = client(PlatformRole.READ_ONLY)

    def found(query: str) -> list[Any]:
        return [one["id"] for one in asking.get(f"{JOBS}?{query}").json()["results"]]

    for query in ("tenant=acme", "state=queued", "model=llama", "tenant=acme&state=queued"):
        assert found(query) == [str(job.pk)]
    for query in ("tenant=other", "state=failed", "model=qwen"):
        assert found(query) == []
    assert asking.get(f"{JOBS}?state=odd").status_code == 400
    assert asking.get(f"{JOBS}?from=1").status_code == 400


def test_a_job_that_has_ended_is_not_ended_again(job: FineTuningJob) -> None:
    asking = client(PlatformRole.OPERATOR)
    assert asking.post(f"{JOBS}{job.pk}/cancel/").json()["state"] == "cancelled"
    refused = asking.post(f"{JOBS}{job.pk}/cancel/")
    assert (refused.status_code, refused["content-type"]) == (409, "application/problem+json")


@pytest.mark.parametrize("rest", ["", "events/", "log/"])
def test_an_unknown_job_is_none(rest: str) -> None:
    assert client(PlatformRole.SUPERUSER).get(f"{JOBS}{uuid7()}/{rest}").status_code == 404


def test_its_log_is_what_the_trainer_said_and_no_other_file(job: FineTuningJob, folders: TrainingFolders) -> None:
    asking = client(PlatformRole.READ_ONLY)
    FineTuningEvent.objects.create(job=job, message="said")
    assert [event["message"] for event in asking.get(f"{JOBS}{job.pk}/events/").json()["results"]] == ["said"]
    log = folders.make_job(job.pk) / "log.txt"
    log.write_text("你好")
    answer = asking.get(f"{JOBS}{job.pk}/log/")
    assert (b"".join(answer.streaming_content), answer["content-type"]) == (  # type: ignore[attr-defined]
        "你好".encode(),
        "text/plain; charset=utf-8",
    )
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert b"".join(asking.get(f"{JOBS}{job.pk}/log/").streaming_content) == b""  # type: ignore[attr-defined]


def test_an_erasure_does_not_end_before_its_files_are_gone(
    job: FineTuningJob, folders: TrainingFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.holdings.training_folders", lambda: folders)
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)  # as one that may not delete them
    folders.make_job(job.pk)
    with pytest.raises(Conflict, match="cannot be deleted"):
        sweep(job.tenant_id)


def test_the_files_of_an_erased_tenant_go_with_it(
    job: FineTuningJob, folders: TrainingFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.holdings.training_folders", lambda: folders)
    folders.keep_file(job.tenant_id, b"examples")
    folders.make_job(job.pk)
    other = folders.file(uuid7(), folders.keep_file(uuid7(), b"others"))
    sweep(job.tenant_id)
    assert not folders.tenant_files(job.tenant_id).exists()
    assert not folders.job(job.pk).exists()
    assert [path for path in folders.root.rglob("*") if path.is_file() and path.name == other.name]
    assert training_folders().root != folders.root

"""Running jobs with a trainer's double: every ending, two workers, and workers that are gone."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from bench.house import wait_until
from gpupool.models import Adapter, FineTuningJob, TrainingFile
from gpupool.policies.training import JobState
from gpupool.services import training_runs
from gpupool.services.training_files import Whose, create_training_file
from gpupool.services.training_jobs import JobWish, cancel_fine_tuning_job, create_fine_tuning_job
from gpupool.services.training_runs import ABANDONED_AFTER, tend_jobs
from gpupool.training.leftovers import end_trainers
from gpupool.training.process import is_alive, read_ending, runner_pid, start_runner
from gpupool.training.progress import read_progress
from gpupool.training.settings import TrainingSettings
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Tenant, TenantState
from tenants.services.tenants import set_tenant_state
from tests.factories import make_model, make_tenant, make_version
from tests.training import EXAMPLE, end_all, limits, training_settings_for, until_ended

pytestmark = pytest.mark.django_db

DATA = Path(__file__).resolve().parents[2] / "data" / "tiny32-lora1"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[TrainingSettings]:
    settings = training_settings_for(tmp_path)
    yield settings
    end_all(settings)


@pytest.fixture
def tenant() -> Tenant:
    make_version(make_model("llama"))
    return make_tenant("acme")


def ask(tenant: Tenant, settings: TrainingSettings, suffix: str = "") -> FineTuningJob:
    whose = Whose(tenant.pk, tenant.slug, None, None)
    file = create_training_file(
        EXAMPLE, filename="a.jsonl", purpose="fine-tune", whose=whose, settings=settings, actor=SYSTEM
    )
    return create_fine_tuning_job(JobWish("llama", file.pk, 7, suffix=suffix), whose=whose, actor=SYSTEM)


def look(settings: TrainingSettings, **more: Any) -> None:
    tend_jobs(settings, **{"now": timezone.now(), **more})


def until_waiting(job: FineTuningJob, settings: TrainingSettings) -> None:
    """Until its trainer waits to be ended."""

    def told() -> bool:
        look(settings)
        return job.events.filter(message="Waiting").exists()

    wait_until(told, "the trainer waits")
    job.refresh_from_db()


@pytest.mark.shows("R6")
def test_a_result_becomes_an_adapter_of_the_version_it_was_trained_on(
    tenant: Tenant, settings: TrainingSettings
) -> None:
    job = ask(tenant, settings, "mine")
    until_ended(settings)
    job.refresh_from_db()
    adapter = Adapter.objects.get(job=job)
    assert (job.state, job.trained_tokens, job.steps, job.error_code) == ("succeeded", 20, 2, "")
    assert (adapter.version_id, adapter.tenant_id, adapter.rank, adapter.alpha) == (job.version_id, tenant.pk, 4, 8)
    assert adapter.target_modules == ["q_proj", "v_proj"]
    assert adapter.name == f"ft:llama:acme:mine:{job.pk.hex[-12:]}"
    folder = settings.folders.adapter(adapter.pk)
    assert adapter.artefact_uri == folder.as_uri()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (folder / name).read_bytes() == (DATA / name).read_bytes()
    assert not (settings.folders.job(job.pk) / "output").exists()
    actions = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"fine_tuning_job.started", "fine_tuning_job.ended", "adapter.created"} <= actions


@pytest.mark.parametrize(
    ("suffix", "code", "says"),
    [
        ("fails", "trainer_failed", "with status 3"),
        ("empty", "bad_result", "left no adapter_config.json"),
        ("pickle", "bad_result", "left no adapter_config.json"),
        ("broken", "bad_result", "shorter than its tensors"),
    ],
)
def test_what_is_no_adapter_is_a_failure_that_says_why(
    tenant: Tenant, settings: TrainingSettings, suffix: str, code: str, says: str
) -> None:
    job = ask(tenant, settings, suffix)
    until_ended(settings)
    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", code)
    assert says in job.error_message
    assert not Adapter.objects.exists()
    assert not settings.folders.adapter(job.pk).exists()


def test_a_result_that_cannot_be_written_down_is_a_failure(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings)
    look(settings)
    folder = settings.folders.job(job.pk)
    wait_until(lambda: (folder / "exit.json").exists(), "the trainer's end")
    config = folder / "output" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": ["q\0"]}))
    look(settings)
    job.refresh_from_db()
    assert (job.state, job.error_code, job.runner_live) == ("failed", "bad_result", False)


def test_a_job_that_cannot_be_looked_after_holds_up_no_other(
    tenant: Tenant, settings: TrainingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ask(each, settings, "slow") for each in (tenant, make_tenant("other")))
    broken = settings.folders.job(first.pk)

    def read(folder: Path, offset: int, *, ended: bool) -> Any:
        return read_progress(folder if folder != broken else Path("\0"), offset, ended=ended)  # ValueError

    monkeypatch.setattr(training_runs, "read_progress", read)
    until_waiting(second, settings)


def test_a_runner_that_was_given_up_does_not_go_on(
    tenant: Tenant, settings: TrainingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ask(tenant, settings, "slow")

    def start(*arguments: Any) -> None:
        start_runner(*arguments)
        raise TimeoutError

    monkeypatch.setattr(training_runs, "start_runner", start)
    look(settings)
    assert FineTuningJob.objects.get().error_code == "trainer_not_started"
    folder = settings.folders.job(job.pk)
    wait_until(lambda: not is_alive(folder) and not _jobs_processes(folder), "none of its processes")


@pytest.mark.parametrize("command", ["/nowhere/trainer", "/etc/passwd"])
def test_a_trainer_that_cannot_be_started_is_a_failure_without_its_address(
    tenant: Tenant, settings: TrainingSettings, command: str
) -> None:
    job = ask(tenant, settings)
    until_ended(replace(settings, command=(command,)))
    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", "trainer_not_started")
    assert command not in job.error_message


def test_a_training_ends_at_its_longest_time(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings, "slow")
    until_ended(replace(settings, limits=limits(seconds=0.5)))
    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", "too_long")


def test_of_what_a_trainer_says_no_more_is_kept_than_may_be(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings, "loud")
    until_ended(replace(settings, limits=limits(log_bytes=5000)))
    job.refresh_from_db()
    assert job.state == "succeeded"  # it was not held up by it
    assert (settings.folders.job(job.pk) / "log.txt").stat().st_size == 5000


@pytest.mark.shows("G25")
def test_a_trainer_sees_no_secrets_of_ours(
    tenant: Tenant, settings: TrainingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "GATEHOUSE_SECRET_KEY", "GATEHOUSE_ENGINE_KEY_A", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, os.environ.get(name, "") + "?canary")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    job = ask(tenant, settings, "environment")
    until_ended(replace(settings, passed=("CUDA_VISIBLE_DEVICES",)))
    folder = settings.folders.job(job.pk)
    seen = json.loads((folder / "log.txt").read_text().splitlines()[-1])
    assert set(seen) - {"LC_CTYPE", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV"} == {
        "PATH", "HOME", "TMPDIR", "GATEHOUSE_JOB_FILE", "GATEHOUSE_OUTPUT_DIR", "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip
    assert seen["HOME"] == str(folder)
    assert not [path for path in folder.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]


@pytest.mark.parametrize("suffix", ["slow", "deaf"])
def test_a_job_that_is_cancelled_is_over_at_once_and_its_trainer_soon(
    tenant: Tenant, settings: TrainingSettings, suffix: str
) -> None:
    job = ask(tenant, settings, suffix)
    until_waiting(job, settings)
    assert cancel_fine_tuning_job(job.pk, actor=SYSTEM).state == "cancelled"
    until_ended(settings)
    job.refresh_from_db()
    assert (job.state, job.runner_live, job.error_code) == ("cancelled", False, "")
    ending = read_ending(settings.folders.job(job.pk))
    assert ending is not None
    assert (ending.why, ending.status) == ("cancelled", -signal.SIGKILL if suffix == "deaf" else -signal.SIGTERM)
    assert not Adapter.objects.exists()


def test_a_job_that_is_cancelled_before_it_starts_never_does(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings)
    cancel_fine_tuning_job(job.pk, actor=SYSTEM)
    look(settings)
    assert not settings.folders.job(job.pk).exists()


def test_one_job_of_a_tenant_runs_at_a_time_and_no_more_than_may(tenant: Tenant, settings: TrainingSettings) -> None:
    others = [make_tenant(f"other-{number}") for number in range(2)]
    jobs = [ask(each, settings, "slow") for each in (tenant, tenant, *others)]
    look(replace(settings, jobs=2))
    assert [FineTuningJob.objects.get(pk=job.pk).state for job in jobs] == ["running", "queued", "running", "queued"]


def test_nothing_of_a_suspended_tenant_is_started(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    look(settings)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_a_file_that_is_gone_from_the_disk_is_a_failure(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings)
    settings.folders.drop_file(tenant.pk, TrainingFile.objects.get().sha256)
    look(settings)
    job.refresh_from_db()
    assert (job.state, job.error_code, job.runner_live) == ("failed", "file_missing", False)


def test_a_training_whose_runner_was_killed_has_failed_and_its_trainer_is_dead(
    tenant: Tenant, settings: TrainingSettings
) -> None:
    job = ask(tenant, settings, "deaf")
    until_waiting(job, settings)
    assert job.runner_pid is not None
    os.kill(job.runner_pid, signal.SIGKILL)
    until_ended(settings)
    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", "runner_lost")
    marker = str(settings.folders.job(job.pk)).encode()
    wait_until(lambda: not _commands_with(marker), "no process of the job")


def _commands_with(marker: bytes) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


def test_what_is_stopped_with_everything_else_has_failed(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings, "slow")
    until_waiting(job, settings)
    assert end_trainers(settings.folders.root) == 1
    assert not is_alive(settings.folders.job(job.pk))
    look(settings)
    job.refresh_from_db()
    assert (job.state, job.error_code, job.runner_live) == ("failed", "interrupted", False)
    assert end_trainers(settings.folders.root) == 0


def test_a_process_of_another_machine_is_no_runner(tmp_path: Path) -> None:
    (tmp_path / "runner.json").write_text(json.dumps({"pid": os.getpid(), "mark": "another-boot:1"}))
    assert runner_pid(tmp_path) is None


def _jobs_processes(folder: Path) -> list[str]:
    """Found by their environment; what is dead and not yet collected has none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{folder}/job.json\0".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_nothing_that_a_trainer_leaves_behind_goes_on(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings, "leaves")
    folder = settings.folders.job(job.pk)
    look(settings)
    wait_until(lambda: read_ending(folder) is not None, "the trainer's end")
    # The runner itself is about to end: what it told is on disk before.
    wait_until(lambda: len(_jobs_processes(folder)) == 1, "what the trainer left alone")
    until_ended(settings)
    job.refresh_from_db()
    assert job.state == "succeeded"
    wait_until(lambda: not _jobs_processes(folder), "none of its processes")


def test_a_job_that_a_worker_took_and_died_is_started_by_the_next(tenant: Tenant, settings: TrainingSettings) -> None:
    job = ask(tenant, settings)
    host = os.uname().nodename
    FineTuningJob.objects.filter(pk=job.pk).update(
        state=JobState.RUNNING, runner_live=True, runner_host=host, started_at=timezone.now(), seen_at=timezone.now()
    )
    until_ended(settings)
    job.refresh_from_db()
    assert job.state == "succeeded"


def test_a_runner_that_was_not_written_down_is_found_and_not_started_twice(
    tenant: Tenant, settings: TrainingSettings
) -> None:
    job = ask(tenant, settings, "slow")
    look(settings)
    FineTuningJob.objects.filter(pk=job.pk).update(runner_pid=None, runner_mark="", read_bytes=0)
    until_waiting(job, settings)
    found = runner_pid(settings.folders.job(job.pk))
    assert found is not None
    assert job.runner_pid == found[0]
    assert len(_commands_with(f"{settings.folders.job(job.pk)}\0".encode())) == 1


def test_a_result_that_was_moved_before_its_worker_died_is_registered(
    tenant: Tenant, settings: TrainingSettings
) -> None:
    job = ask(tenant, settings)
    look(settings)
    wait_until(lambda: read_ending(settings.folders.job(job.pk)) is not None, "the trainer's end")
    settings.folders.take_output(job.pk, job.pk)
    until_ended(settings)
    job.refresh_from_db()
    assert job.state == "succeeded"


def test_a_machine_that_is_not_heard_of_loses_its_jobs_and_ends_them_when_it_is_back(
    tenant: Tenant, settings: TrainingSettings
) -> None:
    job = ask(tenant, settings, "slow")
    until_waiting(job, settings)
    look(settings, host="another", now=timezone.now() + ABANDONED_AFTER - timedelta(minutes=1))
    job.refresh_from_db()
    assert job.state == "running"
    look(settings, host="another", now=timezone.now() + ABANDONED_AFTER + timedelta(minutes=1))
    job.refresh_from_db()
    assert (job.state, job.error_code, job.runner_live) == ("failed", "worker_lost", False)
    look(settings)
    wait_until(lambda: not is_alive(settings.folders.job(job.pk)), "its end")


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_do_everything_once(tenant: Tenant, settings: TrainingSettings) -> None:
    jobs = [ask(tenant, settings, f"n{number}") for number in range(3)]
    stop = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        try:
            while not stop.is_set():
                look(settings)
        except Exception as error:  # noqa: BLE001  # told below
            errors.append(error)
        finally:
            connection.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        wait_until(
            lambda: FineTuningJob.objects.filter(state="succeeded", runner_live=False).count() == 3, "all", seconds=120
        )
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not errors
    assert Adapter.objects.count() == 3
    for job in jobs:
        messages = [event.message for event in job.events.order_by("pk")]
        assert messages[1:5] == [
            "Training has started.",
            "Looked at the examples",
            "Step 1: training loss=2.5000",
            "Step 2: training loss=1.2500",
        ]
        assert len(messages) == 6

"""Running fine-tuning jobs: a worker looks after them every few seconds, and none of them hangs on its life.

Everything that is to be done for a job is decided from its row and its folder, under the row's lock: a worker that
dies at any point leaves what the next look goes on from, and two workers do nothing twice.
"""

import os
import socket
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import structlog
from django.db import connection, transaction
from django.db.models import Count, Q

from gpupool.models import Adapter, FineTuningEvent, FineTuningJob, TrainingFile
from gpupool.policies.adapter import BadAdapter
from gpupool.policies.training import JobState, adapter_name, check_step
from gpupool.training.folders import JOB_FILE, OUTPUT, check_adapter
from gpupool.training.process import (
    Ending,
    ask_to_end,
    is_alive,
    kill_leftovers,
    read_ending,
    runner_pid,
    start_runner,
    trainer_environment,
    was_started,
)
from gpupool.training.progress import Told, read_progress
from gpupool.training.settings import TrainingSettings
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantState
from tenants.services import record_audit

MOST_EVENTS: Final = 10_000
ABANDONED_AFTER: Final = timedelta(minutes=10)
"""Of a job whose machine nobody hears of."""

WORKER_LOST: Final = "worker_lost"
_REMEMBERED: Final = timedelta(days=7)
_CAP_LOCK: Final = 0x7472_6E01

log = structlog.get_logger(__name__)


def tend_jobs(settings: TrainingSettings, *, now: datetime, host: str = "") -> int:
    """Start what may start, and look after what runs on this machine. Returns how many jobs were looked after."""
    host = host or socket.gethostname()
    if settings.command:
        while _claim_next(settings, host=host, now=now):
            pass
    live = FineTuningJob.objects.filter(runner_live=True)
    for job_id in live.filter(seen_at__lt=now - ABANDONED_AFTER).exclude(runner_host=host).values_list("pk", flat=True):
        _abandon(job_id, now=now)
    mine = list(live.filter(runner_host=host).order_by("pk").values_list("pk", flat=True))
    for job_id in mine:
        try:
            _tend(job_id, settings, host=host, now=now)
        except Exception:  # a defect that one job brings out must not hold up all others
            log.exception("job_not_looked_after", job_id=str(job_id))
    _end_forgotten(settings, host=host, now=now)
    return len(mine)


@transaction.atomic
def _claim_next(settings: TrainingSettings, *, host: str, now: datetime) -> bool:
    """Take the job that has waited longest and may run; False where there is none."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_CAP_LOCK])
    live = FineTuningJob.objects.filter(runner_live=True)
    if live.count() >= settings.jobs:
        return False
    running = live.values("tenant_id").annotate(jobs=Count("pk"))
    full = [row["tenant_id"] for row in running if row["jobs"] >= settings.jobs_per_tenant]
    active = Tenant.objects.filter(state=TenantState.ACTIVE, erasing_at=None).values("pk")
    queued = FineTuningJob.objects.filter(state=JobState.QUEUED, tenant_id__in=active).exclude(tenant_id__in=full)
    job = queued.select_for_update(skip_locked=True, of=("self",)).order_by("pk").first()
    if job is None:
        return False
    check_step(job.state, JobState.RUNNING)
    job.state, job.started_at, job.seen_at = JobState.RUNNING, now, now
    job.runner_live, job.runner_host = True, host
    job.save(update_fields=["state", "started_at", "seen_at", "runner_live", "runner_host"])
    record_audit(
        "fine_tuning_job.started", subject=job, actor=SYSTEM, tenant_id=job.tenant_id, after={"state": job.state}
    )
    return True


@transaction.atomic
def _tend(job_id: UUID, settings: TrainingSettings, *, host: str, now: datetime) -> None:
    """One look after one job; another worker that is at it has it for itself."""
    rows = FineTuningJob.objects.select_for_update(skip_locked=True, of=("self",))
    job = rows.filter(pk=job_id, runner_live=True, runner_host=host).first()
    if job is None:
        return
    folder = settings.folders.job(job.pk)
    alive = is_alive(folder)
    job.seen_at = now
    if (found := runner_pid(folder)) is not None:
        job.runner_pid, job.runner_mark = found
    if job.ended:
        if not alive:
            kill_leftovers(folder)
            job.runner_live = False
            settings.folders.drop_output(job.pk)
        elif found is not None:
            ask_to_end(*found)
    elif not alive and not was_started(folder):
        _launch(job, settings, now=now)
    else:
        _take_news(job, folder, ended=not alive)
        if not alive:
            kill_leftovers(folder)
            _finish(job, settings, read_ending(folder), now=now)
    job.save()


def _launch(job: FineTuningJob, settings: TrainingSettings, *, now: datetime) -> None:
    """Start its runner."""
    files = {}
    for name, file_id in (("training_file", job.training_file_id), ("validation_file", job.validation_file_id)):
        if file_id is None:
            continue
        row = TrainingFile.objects.filter(pk=file_id, tenant_id=job.tenant_id).first()
        path = None if row is None else settings.folders.file(job.tenant_id, row.sha256)
        if path is None or not path.is_file():
            _fail(job, "file_missing", f"The {name.replace('_', ' ')} is not there any more.", now=now)
            return
        files[name] = str(path)
    if not settings.command:
        _fail(job, "not_configured", "No trainer is configured any more.", now=now)
        return
    try:
        folder = settings.folders.make_job(job.pk)
        _write_job_file(job, folder, files)
        environment = trainer_environment(folder, passed=settings.passed, environ=os.environ)
        command = [*settings.command, "--job", str(folder / JOB_FILE)]
        start_runner(folder, command, settings.limits, environment)
    except (OSError, subprocess.SubprocessError) as error:
        log.error("trainer_not_started", job_id=str(job.pk), reason=str(error))
        kill_leftovers(settings.folders.job(job.pk))  # it may only have been slow: nobody would look after it
        _fail(job, "trainer_not_started", "The trainer could not be started.", now=now)
        return
    if (found := runner_pid(folder)) is not None:
        job.runner_pid, job.runner_mark = found
    FineTuningEvent.objects.create(job=job, message="Training has started.")


def _write_job_file(job: FineTuningJob, folder: Path, files: dict[str, str]) -> None:
    version = job.version
    told = {
        "job": str(job.pk),
        "model": job.model,
        "version": version.name,
        "artefact": version.artefact_uri,
        "method": job.method,
        "hyperparameters": job.hyperparameters,
        "seed": job.seed,
        "suffix": job.suffix,
        "output": str(folder / OUTPUT),
        "training_file": files["training_file"],
        "validation_file": files.get("validation_file"),
    }
    half = folder / f".{JOB_FILE}.half"
    half.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2))
    half.replace(folder / JOB_FILE)


def _take_news(job: FineTuningJob, folder: Path, *, ended: bool) -> None:
    """What the trainer told since the last look becomes events."""
    room = MOST_EVENTS - job.events.count()
    while True:
        told, offset = read_progress(folder, job.read_bytes, ended=ended)
        if offset == job.read_bytes:
            return
        job.read_bytes = offset
        for news in told:
            if news.trained_tokens is not None:
                job.trained_tokens = news.trained_tokens
            if news.step is not None:
                job.steps = news.step
        events = [_event(job, news) for news in told if news.kind != "progress"]
        FineTuningEvent.objects.bulk_create(events[: max(0, room)])
        room -= len(events)


def _event(job: FineTuningJob, news: Told) -> FineTuningEvent:
    data: dict[str, float] = dict(news.data)
    return FineTuningEvent(job=job, kind=news.kind, level=news.level, message=news.message, data=data)


def _finish(job: FineTuningJob, settings: TrainingSettings, ending: Ending | None, *, now: datetime) -> None:
    """The runner is gone: what came of it."""
    if ending is None:
        _fail(job, "runner_lost", "The training was broken off: its machine or its process was ended.", now=now)
    elif ending.why == "not_started":
        log.error("trainer_not_started", job_id=str(job.pk), reason=ending.detail)
        _fail(job, "trainer_not_started", "The trainer could not be started.", now=now)
    elif ending.why == "too_long":
        _fail(job, "too_long", f"The training took longer than {settings.limits.seconds:g} seconds.", now=now)
    elif ending.why:
        _fail(job, "interrupted", "The training was ended by whoever operates this machine.", now=now)
    elif ending.status != 0:
        how = f"with status {ending.status}" if (ending.status or 0) > 0 else f"by signal {-(ending.status or 0)}"
        _fail(job, "trainer_failed", f"The trainer ended {how}; see its log.", now=now)
    else:
        _register(job, settings, now=now)
    job.runner_live = False
    settings.folders.drop_output(job.pk)


def _register(job: FineTuningJob, settings: TrainingSettings, *, now: datetime) -> None:
    """Make an adapter of what the trainer left. Its id is the job's, so that it is made once."""
    folders = settings.folders
    try:
        place = folders.take_output(job.pk, job.pk)
        checked = check_adapter(place)
    except (BadAdapter, OSError) as error:
        folders.drop_adapter(job.pk)
        reason = str(error) if isinstance(error, BadAdapter) else "what the trainer left cannot be read."
        log.warning("adapter_refused", job_id=str(job.pk), reason=str(error))
        _fail(job, "bad_result", f"No adapter: {reason}", now=now)
        return
    name = adapter_name(job.model, job.tenant_slug, job.suffix, job.pk.hex[-12:])
    adapter = Adapter.objects.create(
        pk=job.pk,
        version=job.version,
        tenant_id=job.tenant_id,
        job=job,
        name=name,
        artefact_uri=place.as_uri(),
        sha256=checked.sha256,
        size_bytes=checked.size_bytes,
        rank=checked.facts.rank,
        alpha=checked.facts.alpha,
        target_modules=checked.facts.target_modules,
    )
    record_audit(
        "adapter.created",
        subject=adapter,
        actor=SYSTEM,
        tenant_id=job.tenant_id,
        after={"name": name, "version": str(job.version_id), "sha256": checked.sha256, "rank": adapter.rank},
    )
    _end(job, JobState.SUCCEEDED, now=now)
    FineTuningEvent.objects.create(job=job, message=f"The adapter {name} is registered.")


def _fail(job: FineTuningJob, code: str, message: str, *, now: datetime) -> None:
    job.error_code, job.error_message = code, message[:1000]
    job.runner_live = False
    _end(job, JobState.FAILED, now=now)
    FineTuningEvent.objects.create(job=job, level="error", message=message[:2000])


def _end(job: FineTuningJob, state: JobState, *, now: datetime) -> None:
    check_step(job.state, state)
    before, job.state, job.finished_at = job.state, state, now
    job.save()
    record_audit(
        "fine_tuning_job.ended",
        subject=job,
        actor=SYSTEM,
        tenant_id=job.tenant_id,
        before={"state": before},
        after={"state": state, "error": job.error_code},
    )


@transaction.atomic
def _abandon(job_id: UUID, *, now: datetime) -> None:
    """Its machine has not been heard of: whatever comes of it there counts no more."""
    rows = FineTuningJob.objects.select_for_update(skip_locked=True, of=("self",))
    job = rows.filter(pk=job_id, runner_live=True, seen_at__lt=now - ABANDONED_AFTER).first()
    if job is None:
        return
    if not job.ended:
        _fail(job, WORKER_LOST, "The machine that trained is not heard of any more.", now=now)
    job.runner_live = False
    job.save()


def _end_forgotten(settings: TrainingSettings, *, host: str, now: datetime) -> None:
    """Trainers of this machine that were given up while it was away."""
    forgotten = Q(runner_host=host, error_code=WORKER_LOST, finished_at__gt=now - _REMEMBERED)
    for job_id in FineTuningJob.objects.filter(forgotten).values_list("pk", flat=True):
        folder = settings.folders.job(job_id)
        if is_alive(folder) and (found := runner_pid(folder)) is not None:
            ask_to_end(*found)

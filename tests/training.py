"""A trainer's double, and looking after jobs until they have ended."""

import json
import sys
from pathlib import Path
from typing import Final

from django.utils import timezone

from bench.house import wait_until
from gpupool.models import FineTuningJob
from gpupool.services.training_runs import tend_jobs
from gpupool.training.folders import TrainingFolders
from gpupool.training.process import Limits, ask_to_end, is_alive, runner_pid
from gpupool.training.settings import TrainingSettings

TRAINER: Final = Path(__file__).resolve().parent / "doubles" / "trainer.py"
COMMAND: Final = f"{sys.executable} {TRAINER}"
EXAMPLE: Final = (
    json.dumps({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "你好"}]}).encode()
    + b"\n"
)


def limits(
    *, seconds: float = 30, log_bytes: int = 100_000, progress_bytes: int = 100_000, grace_seconds: float = 0.5
) -> Limits:
    return Limits(seconds, log_bytes, progress_bytes, grace_seconds)


def until_ended(settings: TrainingSettings) -> None:
    """Look after all jobs, as workers do, until no process of any is left."""

    def over() -> bool:
        tend_jobs(settings, now=timezone.now())
        waiting = FineTuningJob.objects.filter(state__in=("queued", "running")).exists()
        return not waiting and not FineTuningJob.objects.filter(runner_live=True).exists()

    wait_until(over, "all jobs ended", seconds=60)


def training_settings_for(
    folder: Path, *, file_cap_bytes: int = 65536, tenant_bytes: int = 1 << 20
) -> TrainingSettings:
    """With the double, under that folder."""
    return TrainingSettings(
        TrainingFolders(folder), tuple(COMMAND.split()), (), limits(), 4, 1, file_cap_bytes, tenant_bytes
    )


def end_all(settings: TrainingSettings) -> None:
    """End every trainer that a test left."""
    jobs = [path for path in (settings.folders.root / "jobs").glob("*") if is_alive(path)]
    for path in jobs:
        if (found := runner_pid(path)) is not None:
            ask_to_end(*found)
    wait_until(lambda: not any(map(is_alive, jobs)), "all trainers ended")

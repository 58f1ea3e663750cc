"""The process's settings as trainers need them."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from django.conf import settings

from gpupool.training.folders import TrainingFolders
from gpupool.training.process import Limits

_OURS = "GATEHOUSE_"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """`command` is empty where no trainer is configured, or where its quotes do not match."""

    folders: TrainingFolders
    command: tuple[str, ...]
    passed: tuple[str, ...]
    limits: Limits
    jobs: int
    jobs_per_tenant: int
    file_cap_bytes: int
    tenant_bytes: int


def training_folders() -> TrainingFolders:
    """Where everything of this installation's trainings lies."""
    root: Path = settings.GATEHOUSE.training_root
    return TrainingFolders(root)


def training_settings() -> TrainingSettings:
    """As of this process's environment."""
    environment = settings.GATEHOUSE
    secret = {field.metadata["variable"] for field in fields(environment) if field.metadata["secret"]}
    return TrainingSettings(
        folders=training_folders(),
        command=split_command(environment.trainer_command),
        passed=tuple(n for n in environment.trainer_environment if n not in secret and not n.startswith(_OURS)),
        limits=Limits(
            seconds=environment.trainer_seconds,
            log_bytes=environment.trainer_log_bytes,
            progress_bytes=environment.trainer_log_bytes,
            grace_seconds=environment.trainer_grace_seconds,
        ),
        jobs=environment.trainer_jobs,
        jobs_per_tenant=environment.trainer_jobs_per_tenant,
        file_cap_bytes=environment.training_file_cap_bytes,
        tenant_bytes=environment.training_tenant_bytes,
    )


def split_command(line: Any) -> tuple[str, ...]:
    """A command line in its words; empty where it makes no sense."""
    try:
        return tuple(shlex.split(line or ""))
    except ValueError:
        return ()

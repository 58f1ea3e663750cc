"""The process's settings as trainers need them."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from django.conf import settings

from core.env import SettingsError
from gpupool.training.folders import TrainingFolders
from gpupool.training.process import Limits

_OURS: Final = "GATEHOUSE_"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """`command` is empty where no trainer is configured."""

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
    """As of this process's environment. Raises SettingsError."""
    environment = settings.GATEHOUSE
    secret = {field.metadata["variable"] for field in fields(environment) if field.metadata["secret"]}
    return TrainingSettings(
        folders=training_folders(),
        command=_words(environment.trainer_command),
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


def _words(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise SettingsError(f"GATEHOUSE_TRAINER_COMMAND is no command line: {error}") from error

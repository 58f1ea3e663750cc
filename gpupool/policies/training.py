"""Fine-tuning jobs: their states as a table, and what a request for one may ask."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

AUTO: Final = "auto"
SUFFIX_LENGTH: Final = 64
LARGEST_SEED: Final = 2**31 - 1

_SUFFIX = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_METADATA_KEYS: Final = 16
_METADATA_KEY_LENGTH: Final = 64
_METADATA_VALUE_LENGTH: Final = 512


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ALLOWED: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}
ENDED: Final = frozenset(state for state, following in ALLOWED.items() if not following)
"""States that a job does not leave."""


class IllegalStep(ValueError):
    """The table has no way from the one state to the other."""


def check_step(current: str, target: str) -> None:
    """Raises IllegalStep unless the table lists the step."""
    if JobState(target) not in ALLOWED[JobState(current)]:
        raise IllegalStep(f"a fine-tuning job does not go from {current} to {target}")


def suffix_fault(suffix: str) -> str | None:
    """What is wrong with a suffix; None for a good one, which may become part of a model's name."""
    if len(suffix) > SUFFIX_LENGTH:
        return f"A suffix has at most {SUFFIX_LENGTH} characters."
    if _SUFFIX.fullmatch(suffix) is None or ".." in suffix:
        return "A suffix is made of letters, digits, '.', '_' and '-', and begins and ends with a letter or digit."
    return None


def metadata_fault(metadata: Mapping[str, str]) -> str | None:
    """What is wrong with a job's metadata; None where nothing is."""
    if len(metadata) > _METADATA_KEYS:
        return f"Metadata has at most {_METADATA_KEYS} members."
    for key, value in metadata.items():
        if not 0 < len(key) <= _METADATA_KEY_LENGTH or len(value) > _METADATA_VALUE_LENGTH:
            return (
                f"Metadata's names have 1 to {_METADATA_KEY_LENGTH} characters, its values at most "
                f"{_METADATA_VALUE_LENGTH}."
            )
        if "\0" in key + value:
            return "Metadata may not hold the character NUL."
    return None


def hyperparameter_fault(name: str, value: Any) -> str | None:
    """What is wrong with one; None for a good one. Numbers have to be positive, and whole where they count."""
    if value == AUTO:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        return f"'{name}' is a positive number or 'auto'."
    if name in ("n_epochs", "batch_size") and (not isinstance(value, int) or value > 1_000_000):
        return f"'{name}' is a whole number up to 1000000, or 'auto'."
    return f"'{name}' is at most 1000000." if value > 1_000_000 else None


def adapter_name(model: str, tenant: str, suffix: str, number: str) -> str:
    """The name that a result gets: as OpenAI's `ft:base:organisation:suffix:id`."""
    return f"ft:{model}:{tenant}:{suffix}:{number}"

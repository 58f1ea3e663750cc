"""The addresses of files and fine-tuning jobs, and the ids in them."""

import re
from typing import Final, NamedTuple
from uuid import UUID

FILES: Final = "/v1/files"
JOBS: Final = "/v1/fine_tuning/jobs"
FILE: Final = "file-"
JOB: Final = "ftjob-"
EVENT: Final = "ftevent-"
CHECKPOINT: Final = "ftckpt_"

_ALLOWED: Final = {
    (FILES, False, ""): b"GET, POST, HEAD, OPTIONS",
    (FILES, True, ""): b"GET, DELETE, HEAD, OPTIONS",
    (FILES, True, "content"): b"GET, HEAD, OPTIONS",
    (JOBS, False, ""): b"GET, POST, HEAD, OPTIONS",
    (JOBS, True, ""): b"GET, HEAD, OPTIONS",
    (JOBS, True, "cancel"): b"POST, OPTIONS",
    (JOBS, True, "events"): b"GET, HEAD, OPTIONS",
    (JOBS, True, "checkpoints"): b"GET, HEAD, OPTIONS",
}
_hexadecimal = re.compile(r"[0-9a-f]{32}")


class TuningPath(NamedTuple):
    """`name` is the id as it was given, empty for the list; `rest` is what is behind it."""

    root: str
    name: str
    rest: str


def find_tuning(path: str) -> TuningPath | None:
    """What such an address says; None for another one."""
    for root in (FILES, JOBS):
        if path == root:
            return TuningPath(root, "", "")
        if path.startswith(f"{root}/"):
            name, slash, rest = path[len(root) + 1 :].partition("/")
            known = bool(name) and bool(slash) == bool(rest) and (root, True, rest) in _ALLOWED
            return TuningPath(root, name, rest) if known else None
    return None


def tuning_methods(path: str) -> bytes:
    """The methods that such an address answers; b"" for another address."""
    found = find_tuning(path)
    return b"" if found is None else _ALLOWED[found.root, bool(found.name), found.rest]


def name_of(prefix: str, number: UUID) -> str:
    return f"{prefix}{number.hex}"


def number_of(prefix: str, name: str) -> UUID | None:
    """The UUID behind a name; None where it is no such name."""
    digits = name.removeprefix(prefix)
    return UUID(digits) if name.startswith(prefix) and _hexadecimal.fullmatch(digits) else None

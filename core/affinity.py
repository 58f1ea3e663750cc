"""On which processors this process runs: on a machine of several NUMA nodes, its memory is then near them too."""

import os
import re
from typing import Final

from core.env import SettingsError

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def parse_cpus(text: str, *, variable: str) -> frozenset[int]:
    """Processors of a list such as `0-7,16-23`, as the kernel writes it. Raises SettingsError."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SettingsError(f"{variable}={text!r} is not a list of processors such as 0-7,16-23")
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)


def run_on(text: str, *, variable: str) -> None:
    """Keep this process, and what it starts, to these processors; an empty list changes nothing.

    Raises SettingsError where none of them can be used, or the system knows no such thing.
    """
    if not text:
        return
    cpus = parse_cpus(text, variable=variable)
    if not hasattr(os, "sched_setaffinity"):
        raise SettingsError(f"{variable} is for Linux: this system does not keep processes to processors")
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise SettingsError(f"{variable}={text!r}: none of these processors can be used here") from error

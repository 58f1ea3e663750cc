"""Ports for servers that take theirs in a row, where a free one of the system's choice is of no help."""

import os
from typing import Final

_FIRST: Final = 20_000
_EACH: Final = 1_500
_WORKERS: Final = 8  # all below 32768, where those begin that the system gives to connections


def worker_port(offset: int) -> int:
    """One that no other worker of this run begins with; `offset`, below 1,500, keeps the users in a worker apart."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return _FIRST + int(worker) % _WORKERS * _EACH + offset

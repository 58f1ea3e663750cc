"""Ports for servers of tests, where one of the system's choice may be another process's before its server has begun.

All are below 32768, where those begin that the system gives to connections and to whoever asks for any.
"""

import os
from itertools import count, islice
from typing import Final

from core.embedded.process import is_free

_FIRST: Final = 20_000
_EACH: Final = 1_500
_WORKERS: Final = 8
_FREE_FIRST: Final = 12_000
_FREE_EACH: Final = 1_000

_numbers: Final = count(os.getpid() * 64)  # runs beside each other begin far from each other


def _worker() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS


def worker_port(offset: int) -> int:
    """The first of several in a row, with which no other worker of this run begins.

    `offset`, below 1,500, keeps the users in a worker apart.
    """
    return _FIRST + _worker() * _EACH + offset


def free_port() -> int:
    """One that is free, and that nobody else of this run is given."""
    ports = (_FREE_FIRST + _worker() * _FREE_EACH + number % _FREE_EACH for number in _numbers)
    return next(port for port in islice(ports, _FREE_EACH) if is_free(port))

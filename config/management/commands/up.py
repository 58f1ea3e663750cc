"""`manage.py up`: everything on this machine."""

import contextlib
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand

from config.environment import Environment
from config.up.lock import AlreadyRunning, VarLock
from config.up.start import Start
from core.embedded.process import StartError
from core.env import read


class Command(BaseCommand):
    help = "Starts servers, doors, pool and batch work on this machine and watches over them. Ctrl-C stops it all."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--detach", action="store_true", help="return once everything answers")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["detach"]:
            sys.exit(_detach())
        # Not the process's usual settings: the addresses that an earlier run wrote down are not wishes.
        environment = read(Environment, os.environ)
        try:
            _run(environment)
        except StartError as error:
            _say_error(f"gatehouse: {error}")
            sys.exit(1)


def _run(environment: Environment) -> None:
    lock = VarLock(environment.var_dir)
    try:
        lock.acquire()
    except AlreadyRunning as running:
        raise StartError(f"{running}: `make status` says where, `make down` stops it") from running
    except OSError as error:
        raise StartError(f"{environment.var_dir} cannot be written: {error}") from error
    try:
        Start(environment, os.environ, say=_say).run(ready=_let_go())
    except OSError as error:
        raise StartError(f"the start failed: {error}") from error
    finally:
        lock.release()


def _say_error(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal or pipe must not keep it from stopping in order
        print(text, flush=True)


def _let_go() -> Callable[[], None]:
    """With GATEHOUSE_UP_DETACHED: give the caller's terminal back once ready; later lines go to a log."""
    log = os.environ.pop("GATEHOUSE_UP_DETACHED", "")

    def ready() -> None:
        if log:
            fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.close(fd)

    return ready


def _detach() -> int:
    """Run `up` in a session of its own and pass on what it says until it is ready or has failed."""
    log = read(Environment, os.environ).var_dir / "log" / "up.log"
    child = subprocess.Popen(
        [sys.executable, "manage.py", "up"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "GATEHOUSE_UP_DETACHED": str(log)},
        start_new_session=True,
        text=True,
    )
    try:
        for line in child.stdout or ():
            print(line, end="", flush=True)
    except KeyboardInterrupt:
        child.terminate()
        return child.wait()
    return child.poll() or 0

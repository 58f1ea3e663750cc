"""`manage.py down`: stops what `up` started in this clone."""

import os
import signal
import time
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.up.lock import VarLock
from config.up.supervisor import end_leftovers
from gpupool.agent.leftovers import stop_all
from gpupool.training.leftovers import end_trainers

_DEADLINE_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1


class Command(BaseCommand):
    help = "Stops everything that `up` started here, engines included."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        var_dir = settings.GATEHOUSE.var_dir
        lock = VarLock(var_dir)
        pid = lock.holder()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _DEADLINE_SECONDS
            while lock.holder() is not None:
                if time.monotonic() > deadline:
                    raise CommandError(f"process {pid} does not end; see {var_dir / 'log'}, then kill -9 {pid}")
                time.sleep(_POLL_SECONDS)
            self.stdout.write("Stopped.")
            return
        left = end_leftovers(var_dir / "run" / "processes.json") + len(stop_all(var_dir))
        left += end_trainers(settings.GATEHOUSE.training_root)
        self.stdout.write(
            f"Gatehouse was not running; {left} processes it had left were ended."
            if left
            else "Gatehouse is not running."
        )

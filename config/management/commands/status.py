"""`manage.py status`: what runs in this clone, where, and how it is."""

import sys
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand

from config.up import probe
from config.up.addresses import local_url
from config.up.lock import VarLock
from config.up.supervisor import running_processes


class Command(BaseCommand):
    help = "Says what runs, at which addresses, and how it is; exit status 1 unless everything is well."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        environment = settings.GATEHOUSE
        pid = VarLock(environment.var_dir).holder()
        if pid is None:
            self.stdout.write("Gatehouse is not running in this clone (make up).")
            sys.exit(1)
        well = True
        self.stdout.write(f"Gatehouse runs (process {pid}).\n")
        for process in running_processes(environment.var_dir / "run" / "processes.json"):
            well = well and process.alive
            state = "runs" if process.alive else "is down"
            ends = f", ended {process.failures} times lately" if process.failures else ""
            self.stdout.write(f"  {process.name:<16} {state} (process {process.pid}{ends})   {process.log}")
        self.stdout.write("")
        doors = (
            ("relay", local_url(environment.relay_host, environment.relay_port), environment.public_relay_url + "/v1"),
            ("web", local_url(environment.web_host, environment.web_port), environment.public_web_url + "/"),
        )
        for name, reached, public in doors:
            answer = probe.get(reached + "/readyz")
            well = well and answer.status == 200
            self.stdout.write(f"  {name:<16} {public:<32} {'ready' if answer.status == 200 else answer.sentence}")
        well = self._instances(environment.database_url) and well
        sys.exit(0 if well else 1)

    def _instances(self, database_url: str | None) -> bool:
        try:
            seen = probe.list_instances(database_url or "")
        except psycopg.Error as error:
            self.stdout.write(f"  PostgreSQL does not answer: {error}")
            return False
        self.stdout.write("")
        for instance in seen:
            self.stdout.write(
                f"  {instance.model:<24} {instance.engine:<10} {instance.state:<10} {instance.reason}".rstrip()
            )
        if not seen:
            self.stdout.write("  No instances.")
        return True

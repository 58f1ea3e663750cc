"""`manage.py prepare`: migrate and make the first contents. `up` runs it and reads its answer."""

import json
import sys
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from config.currency import settle_currency
from config.database_roles import may_empty_audit_log
from config.up.seed import seed
from tenants.services import ensure_partitions


class Command(BaseCommand):
    help = "Migrates the database and makes tenant, people, key, model and node that are missing; answers as JSON."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            call_command("migrate", interactive=False, verbosity=1, stdout=sys.stderr)
            ensure_partitions()
            environment = settings.GATEHOUSE
            settle_currency(environment)
            if may_empty_audit_log():
                self.stderr.write(
                    "DATABASE_URL's role owns the tables: a trigger refuses to empty the audit log, but that role "
                    "could take the trigger away. Set GATEHOUSE_OWNER_DATABASE_URL (docs/operators.md) to withhold it."
                )
            seeded = seed(node_name=environment.node_name, token_file=environment.var_dir / "run" / "node-token")
        except OperationalError as error:
            raise CommandError(f"PostgreSQL does not do what is needed: {error}") from error
        json.dump(asdict(seeded), self.stdout)

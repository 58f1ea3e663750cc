"""`manage.py migrate` as the database's owner, and the runtime role's rights after it."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connection

from config.database_roles import as_owner, grant_runtime


class Command(migrate.Command):
    """Django's, as the role of GATEHOUSE_OWNER_DATABASE_URL where that is set."""

    def handle(self, *args: Any, **options: Any) -> None:
        runtime = str(connection.settings_dict["USER"])
        with as_owner() as owned:
            super().handle(*args, **options)
            if owned and not (options.get("plan") or options.get("check_unapplied")):
                grant_runtime(runtime)

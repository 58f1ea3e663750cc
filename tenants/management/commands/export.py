"""`manage.py export`: everything that is held about a tenant or a person, as JSON lines."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants.actor import SYSTEM
from tenants.models import Tenant, User
from tenants.services.exports import export_person, export_tenant


class Command(BaseCommand):
    help = "Write everything that is held about a tenant or a person, without secrets, as JSON lines."

    def add_arguments(self, parser: ArgumentParser) -> None:
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--tenant", metavar="SLUG")
        whose.add_argument("--person", metavar="ADDRESS", help="the mail address that they log in with")
        parser.add_argument("--output", type=Path, metavar="FILE", help="a new file; without it, standard output")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["tenant"]:
                lines = export_tenant(Tenant.objects.get(slug=options["tenant"]), actor=SYSTEM)
            else:
                lines = export_person(User.objects.get(email=options["person"].lower()), actor=SYSTEM)
        except (Tenant.DoesNotExist, User.DoesNotExist) as error:
            raise CommandError("There is no such tenant or person.") from error
        if options["output"] is None:
            sys.stdout.buffer.writelines(lines)
            return
        try:
            with options["output"].open("xb") as file:
                file.writelines(lines)
        except OSError as error:
            raise CommandError(f"{options['output']} cannot be written: {error.strerror}") from error

"""`manage.py demo_key`: a new key of tenant demo, shown once."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from config.up.seed import rotate_demo_key
from tenants.models import Tenant


class Command(BaseCommand):
    help = "Makes a new API key for tenant demo and shows it once; the old one stops working."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            made = rotate_demo_key()
        except (OperationalError, ImproperlyConfigured) as error:
            raise CommandError(f"the database cannot be reached; does Gatehouse run (make status)? {error}") from error
        except Tenant.DoesNotExist as error:
            raise CommandError("there is no tenant demo: `make up` makes it") from error
        self.stdout.write(made.secret)
        self.stderr.write("The key before it stops working within a second. To use this one in the printed line:")
        self.stderr.write(f"export GATEHOUSE_API_KEY={made.secret}")

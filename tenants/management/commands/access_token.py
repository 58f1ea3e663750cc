"""`manage.py access_token EMAIL`: a secret for scripts that use the control API."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tenants.actor import SYSTEM
from tenants.models import User
from tenants.services import InvalidInput, create_access_token


class Command(BaseCommand):
    help = "Makes an access token with a person's rights in the control API and prints it: now or never."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="whose rights it has")
        parser.add_argument("--name", default="command line", help="what it is for")
        parser.add_argument("--days", type=int, default=90, help="how long it works; 90 by default")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            user = User.objects.get(email=options["email"].lower())
            expires_at = timezone.now() + timedelta(days=options["days"])
            new = create_access_token(user, name=options["name"], expires_at=expires_at, actor=SYSTEM)
        except User.DoesNotExist as error:
            raise CommandError(f"Nobody has the address {options['email']}.") from error
        except OverflowError as error:
            raise CommandError("So many days cannot be counted.") from error
        except InvalidInput as error:
            raise CommandError(error.message) from error
        self.stdout.write(new.secret)

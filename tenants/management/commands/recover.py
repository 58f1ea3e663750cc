"""`manage.py recover EMAIL`: a way back in, when a second factor is lost or the identity provider is broken."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import PlatformRole, User
from tenants.reads.access_tokens import list_access_tokens
from tenants.services import InvalidInput
from tenants.services.people import LINK_LIFE, login_link


class Command(BaseCommand):
    help = (
        "Forgets a person's second factor, ends their sessions, revokes their access tokens, and prints a link that "
        "logs them in once within 15 minutes. With --superuser the person is made, or made a superuser; only while no "
        "superuser can log in."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="who is to get in again")
        parser.add_argument("--superuser", action="store_true", help="as a superuser, when there is none left")

    def handle(self, *args: Any, **options: Any) -> None:
        email = options["email"].strip().lower()
        with transaction.atomic():
            user = self._superuser(email) if options["superuser"] else User.objects.filter(email=email).first()
            if user is None:
                raise CommandError(f"Nobody has the address {email}.")
            if not user.is_active:
                raise CommandError(f"The account {email} is switched off; a superuser can switch it on.")
            tokens = list_access_tokens(user).count()
            services.reset_second_factor(user.pk, actor=SYSTEM)
            new = services.create_login_link(user, actor=SYSTEM)
        self.stdout.write(login_link(new.secret))
        minutes = int(LINK_LIFE.total_seconds() // 60)
        self.stderr.write(f"The link logs {email} in once, within {minutes} minutes. Their second factor is reset.")
        if tokens:
            revoked = "1 access token is" if tokens == 1 else f"{tokens} access tokens are"
            self.stderr.write(f"{revoked} revoked: scripts that use them need new ones.")

    def _superuser(self, email: str) -> User:
        """Raises CommandError while anyone else could do it from inside."""
        others = User.objects.filter(platform_role=PlatformRole.SUPERUSER, is_active=True).exclude(email=email)
        if others.exists():
            raise CommandError("There is a superuser who can log in: ask them, or recover their account.")
        user = User.objects.filter(email=email).first()
        try:
            if user is None:
                return services.create_user(
                    email=email, password=None, platform_role=PlatformRole.SUPERUSER, actor=SYSTEM
                )
            return services.change_person(user.pk, platform_role=PlatformRole.SUPERUSER, is_active=True, actor=SYSTEM)
        except InvalidInput as error:
            raise CommandError(error.message) from error

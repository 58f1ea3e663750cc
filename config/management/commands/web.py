"""`manage.py web`: console, portal, control API and agent streams, under uvicorn in this process."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.currency import settle_currency
from config.web_server import build_server
from core.env import SettingsError


class Command(BaseCommand):
    help = "Runs the web process. SIGTERM ends it in order."

    def handle(self, *args: Any, **options: Any) -> None:
        environment = settings.GATEHOUSE
        if settings.SECRET_KEY.startswith("unset-"):
            raise CommandError(
                "sessions cannot be signed: set GATEHOUSE_SECRET_KEY to 50 random characters (`up` makes one)"
            )
        settle_currency(environment)
        try:
            server = build_server(environment, "config.asgi:application")
        except SettingsError as error:
            raise CommandError(f"{error}.") from error
        server.run()
        if not server.started:
            sys.exit(3)  # uvicorn has said why

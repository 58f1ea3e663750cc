"""`manage.py web`: console, portal, control API and agent streams, under uvicorn in this process."""

import sys
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

_CLOSE_SECONDS = 5
"""How long open websockets and requests have after SIGTERM."""


class Command(BaseCommand):
    help = "Runs the web process. SIGTERM ends it in order."

    def handle(self, *args: Any, **options: Any) -> None:
        environment = settings.GATEHOUSE
        if settings.SECRET_KEY.startswith("unset-"):
            raise CommandError(
                "sessions cannot be signed: set GATEHOUSE_SECRET_KEY to 50 random characters (`up` makes one)"
            )
        config = uvicorn.Config(
            "config.asgi:application",
            host=environment.web_host,
            port=environment.web_port,
            lifespan="on",
            ws="websockets-sansio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            proxy_headers=False,
        )
        server = uvicorn.Server(config)
        server.run()
        if not server.started:
            sys.exit(3)  # uvicorn has said why

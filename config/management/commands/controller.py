"""`manage.py controller`: keeps what runs in line with what is wanted. Start two; one leads."""

import asyncio
import os
import signal
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from psycopg.errors import UndefinedColumn, UndefinedTable

from core.clock import SystemClock
from core.env import SettingsError
from core.tls import engine_context
from gpupool.controller.loop import Controller
from gpupool.engines.registry import engines
from gpupool.leases.default import check_store_settings, open_store
from gpupool.policies.reconcile import Rules


class Command(BaseCommand):
    help = "Runs the pool's controller. SIGTERM ends it and hands the leadership over at once."

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.GATEHOUSE.database_url is None:
            raise CommandError("DATABASE_URL is not set: the controller needs PostgreSQL")
        try:
            check_store_settings()
        except SettingsError as error:
            raise CommandError(str(error)) from error
        try:
            asyncio.run(_run())
        except (UndefinedTable, UndefinedColumn) as error:
            raise CommandError(
                "The database lacks tables that this version of Gatehouse needs: "
                "run `make up`, or `manage.py migrate` first."
            ) from error


async def _run() -> None:
    environment = settings.GATEHOUSE
    engine_context(environment.engine_ca_file)  # a wrong one stops the start, not the first probe
    engines()  # importing others' rooms may take a while, in which no leadership would be renewed
    store = open_store()
    controller = Controller(
        store,
        identity=f"{socket.gethostname()}:{os.getpid()}",
        lease_seconds=environment.controller_lease_seconds,
        rules=Rules(unknown_grace_seconds=environment.node_unreachable_seconds),
        clock=SystemClock(),
    )
    running = asyncio.create_task(controller.run(), name="controller")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        await store.close()

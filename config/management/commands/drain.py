"""`manage.py drain`: brings usage from the stream into the ledger until told to stop, and keeps limits true to it."""

import signal
import threading
from types import FrameType
from typing import Any, Final

import structlog
from django.core.management.base import BaseCommand, CommandError

from config.environment import environment
from config.wiring import build_drain, build_keeper, build_refusal_drain

_KEEPER_SECONDS: Final = 10.0


class Command(BaseCommand):
    help = (
        "Bring usage from Valkey's stream, and from the spools of dead processes, into the ledger; rebuild limit "
        "counters that were lost, and set right those that differ from it."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        env = environment()
        if env.database_url is None or env.valkey_state_url is None:
            raise CommandError("the drain needs DATABASE_URL and VALKEY_STATE_URL")
        stop = threading.Event()

        def halt(number: int, frame: FrameType | None) -> None:
            stop.set()

        signal.signal(signal.SIGTERM, halt)
        signal.signal(signal.SIGINT, halt)
        logger = structlog.get_logger(__name__)
        logger.info("drain_started")
        keeper = threading.Thread(target=build_keeper(env, stop).run, name="limit-keeper")
        keeper.start()
        refusals = threading.Thread(target=build_refusal_drain(env, stop).run, name="refusals")
        refusals.start()
        try:
            build_drain(env, stop).run()
        finally:
            stop.set()
            keeper.join(_KEEPER_SECONDS)
            refusals.join(_KEEPER_SECONDS)
        logger.info("drain_stopped")

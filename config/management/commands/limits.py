"""`manage.py limits`: the counters of calendar limits beside the ledger."""

import threading
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any, Final

import redis
from django.core.management.base import BaseCommand, CommandError

from config.environment import environment
from config.wiring import build_keeper
from gateway.services.limit_compare import Compared, tell_scopes
from gateway.services.limit_counters import KeeperStopped

_HEADING: Final = ("limit", "of", "used", "held", "ledger", "difference", "applied")


class Command(BaseCommand):
    help = (
        "Shows what limits of a day or a month have counted beside what the ledger has. Use that is not in the ledger "
        "yet is not counted on either side; `held` is reserved by requests that run, or lies ready in a process."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--reconcile", action="store_true", help="set right what differs, as the drain does")

    def handle(self, *args: Any, **options: Any) -> None:
        env = environment()
        if env.database_url is None or env.valkey_state_url is None:
            raise CommandError("this needs DATABASE_URL and VALKEY_STATE_URL")
        keeper = build_keeper(env, threading.Event())
        try:
            found = keeper.compare_now(correct=options["reconcile"])
        except KeeperStopped as stopped:
            raise CommandError(f"nothing was compared: {stopped}.") from stopped
        except redis.RedisError as error:
            raise CommandError(f"Valkey does not answer: {error}.") from error
        for line in _lines(found):
            self.stdout.write(line)


def _lines(found: Iterable[Compared]) -> Iterable[str]:
    found = [*found]
    scopes = tell_scopes([one.limit.id for one in found])
    rows = [_HEADING]
    for one in sorted(found, key=lambda one: (scopes.get(one.limit.id, ""), one.limit.metric, one.limit.window)):
        title = f"{one.limit.amount} {one.limit.metric} a {one.limit.window}"
        counts = (str(one.used), str(one.held), str(one.ledger), f"{one.difference:+}", f"{one.applied:+}")
        rows.append((title, scopes.get(one.limit.id, ""), *counts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    for row in rows:
        texts = [cell.ljust(widths[column]) for column, cell in enumerate(row[:2])]
        yield "  ".join([*texts, *(cell.rjust(widths[column]) for column, cell in enumerate(row) if column > 1)])

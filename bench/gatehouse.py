"""Ours under test: the real relay and drain on embedded PostgreSQL and Valkeys of their own."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.bars import LIMITED, OURS
from bench.chats import MODEL
from bench.house import House, HouseError
from bench.proxies import Proxy
from bench.tools import ToolError
from core.embedded.postgres import PostgresServer
from core.embedded.valkey import ValkeyServer

_SETTLE_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1


class Ledger:
    """Waits for the rows of what was sent, and notices one too few or too many."""

    def __init__(self) -> None:
        self._answered = 0
        self._failed = 0

    def settled(self, answered: int, failed: int) -> str | None:
        """Wait until every answered request has its row; a complaint when the count is wrong.

        A failed request may or may not have been forwarded.
        """
        from tenants.models import UsageRecord

        self._answered += answered
        self._failed += failed
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (rows := UsageRecord.objects.count()) < self._answered:
            if time.monotonic() > deadline:
                return f"ledger: {rows} rows for {self._answered} answers after {_SETTLE_SECONDS:.0f} s"
            time.sleep(_POLL_SECONDS)
        if rows > self._answered + self._failed:
            return f"ledger: {rows} rows for {self._answered} answers and {self._failed} failures"
        return None


@contextlib.contextmanager
def gatehouse(upstream_port: int, folder: Path, *, cpus: Sequence[int] | None) -> Iterator[list[Proxy]]:
    """The relay in front of the upstream, seen with a key without a limit and with one under every kind of limit.

    Configures Django for this process. Raises ToolError or StartError when something does not start.
    """
    postgres = PostgresServer(folder / "postgres", log=folder / "postgres.log")
    state = ValkeyServer(folder / "state", log=folder / "state.log", durable=True)
    scratch = ValkeyServer(folder / "scratch", log=folder / "scratch.log", durable=False, memory_mb=64)
    with contextlib.ExitStack() as stack:
        for server in (postgres, state, scratch):
            server.start()
            stack.callback(server.stop)
        postgres.ensure_database("bench")
        environ = {
            "DATABASE_URL": postgres.url("bench"),
            "VALKEY_STATE_URL": state.url,
            "VALKEY_SCRATCH_URL": scratch.url,
            "GATEHOUSE_CLIENT_CONNECTION_CAP": "4000",  # the slow streams come from one address
        }
        house = House(folder, environ)
        stack.callback(house.stop_all)
        free_key, limited_key = _settle_in(house, upstream_port)
        try:
            house.start("drain")
            house.start("relay", cpus=cpus)
        except HouseError as error:
            raise ToolError(str(error)) from error
        ledger = Ledger()
        pids = {"drain": house.pid("drain"), "valkey": state.pid, "postgres": postgres.pid}
        helpers = {name: pid for name, pid in pids.items() if pid is not None}
        yield [
            Proxy(
                name,
                house.relay_port,
                house.pid("relay"),
                headers={"authorization": f"Bearer {secret}"},
                settled=ledger.settled,
                helpers=helpers,
            )
            for name, secret in ((OURS, free_key), (LIMITED, limited_key))
        ]


def _settle_in(house: House, upstream_port: int) -> tuple[str, str]:
    """Migrate, attach the upstream, and make the two keys; their secrets."""
    os.environ.update(house.environ)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)

    from bench.rows import attach, limit_everything, make_key, make_tenant, price
    from tenants.services import ensure_partitions

    ensure_partitions()
    attach(MODEL, upstream_port)
    price(MODEL)
    free = make_key(make_tenant("bench", models=(MODEL,)), "no limit")
    tenant = make_tenant("bench-limited", models=(MODEL,))
    limited = make_key(tenant, "all limits")
    limit_everything(tenant, limited, MODEL)
    return free.secret, limited.secret

"""`manage.py relay`: the OpenAI-compatible door, as a process of its own."""

import asyncio
import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

import prometheus_client.values
import structlog
import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.currency import compare_currency
from config.environment import Environment
from core.affinity import run_on
from core.clock import SystemClock
from core.env import SettingsError
from gateway.relay.door import Door, DoorLimits
from gateway.relay.files import allow_connections
from gateway.relay.server import AddressUnavailable, Listener, RelayServer, ServerLimits, listen

log = structlog.get_logger(__name__)

_SWITCH_SECONDS: Final = 0.0005
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = "Runs a relay. SIGTERM drains it: no new requests, those under way may finish; a second one hurries."
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", help="Address to listen on; GATEHOUSE_RELAY_HOST when left out.")
        parser.add_argument("--port", type=int, help="Port to listen on; GATEHOUSE_RELAY_PORT when left out.")

    def handle(self, *args: Any, **options: Any) -> None:
        environment: Environment = settings.GATEHOUSE
        host = options["host"] or environment.relay_host
        port = environment.relay_port if options["port"] is None else options["port"]
        compare_currency(environment)
        try:
            run_on(environment.relay_cpus, variable="GATEHOUSE_RELAY_CPUS")
        except SettingsError as error:
            raise CommandError(f"{error}.") from error
        try:
            listener = listen(host, port, environment.var_dir / "run")
        except AddressUnavailable as error:
            raise CommandError(f"{error}.") from error
        try:
            share_metrics(environment.var_dir / "prometheus", fresh=listener.first)
        except OSError as error:
            raise CommandError(f"metrics cannot be kept under {environment.var_dir}: {error}.") from error
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(environment, listener))


async def _serve(environment: Environment, listener: Listener) -> None:
    # Makes the metrics, so only after share_metrics.
    from config.wiring import build_client_guard, build_realtime_limits, build_relay_runtime
    from core.telemetry.metrics import CONTENT_TYPE_LATEST, render_metrics

    try:
        clients = build_client_guard(environment, door="relay")
    except SettingsError as error:
        raise CommandError(f"{error}.") from error
    # What runs beside the loop (reads of the database, syncs of the disk) must let go of the interpreter at once: by
    # Python's own 5 ms, each of those reads could hold up every request for as long.
    sys.setswitchinterval(_SWITCH_SECONDS)
    runtime = build_relay_runtime(environment)
    await runtime.start()
    try:
        door = Door(
            runtime.pipeline,
            runtime.upstream,
            SystemClock(),
            deadlines=runtime.deadlines,
            limits=DoorLimits(
                body_cap_bytes=environment.body_cap_bytes,
                body_deadline_seconds=environment.body_deadline_seconds,
                send_deadline_seconds=environment.send_deadline_seconds,
            ),
            realtime_limits=build_realtime_limits(environment),
            readiness=runtime.ready,
            scrape=lambda: (CONTENT_TYPE_LATEST.encode(), render_metrics()),
            metrics_token=environment.metrics_token,
            memory=runtime.memory,
            stored=runtime.stored,
            usage=runtime.usage,
            tuning=runtime.tuning,
            coalescer=runtime.coalescer,
            conversations=runtime.conversations,
        )
        connection_cap = allow_connections(environment.connections)
        if connection_cap < environment.connections:
            log.warning(
                "fewer_connections", cap=connection_cap, reason="the limit on open files (ulimit -n) is too low"
            )
        limits = ServerLimits(
            head_deadline_seconds=environment.head_deadline_seconds,
            connection_cap=connection_cap,
            drain_notice_seconds=environment.drain_notice_seconds,
            drain_deadline_seconds=environment.drain_deadline_seconds,
            message_bytes=environment.realtime_message_bytes,
        )
        server = RelayServer(door, listener, limits, clients)
        for number in _ENDING:  # here and not the server's alone: its end is not yet that of what was noted below
            signal.signal(number, server.handle_exit)
        await server.run_until_stopped()
    finally:
        try:
            await runtime.stop()
        finally:
            # Nothing is left to be hurried; one more would kill the interpreter as it ends, and hide how this did.
            for number in _ENDING:
                signal.signal(number, signal.SIG_IGN)


def share_metrics(folder: Path, *, fresh: bool) -> None:
    """Let the relays on one port add up their metrics in files under `folder`.

    The first one empties it; a later one takes out what relays that have died said of the present.
    Django's apps have imported prometheus_client before this command could set the variable that it
    reads at import, so its choice is made again; metrics that exist already stay in this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.db"):
        if fresh or (file.name.startswith("gauge_live") and not _runs(file)):
            file.unlink(missing_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values: Any = prometheus_client.values  # untyped
    own_pid = os.getpid()  # a relay does not fork; the default asks the kernel at every count
    values.ValueClass = values.MultiProcessValue(lambda: own_pid)


def _runs(file: Path) -> bool:
    """Whether the process that a metrics file is named after (`..._PID.db`) is alive."""
    pid = file.stem.rpartition("_")[2]
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True

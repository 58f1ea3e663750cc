"""`manage.py replay TRACE.csv.gz`: sends a recorded Azure LLM trace at the door."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.replay.client import Door, DoorClient, DoorError, door_at
from gateway.replay.run import Progress, replay
from gateway.replay.schedule import PlannedRequest, plan
from gateway.replay.summary import table
from gateway.replay.trace import TraceError, read_trace

_TELL_SECONDS: Final = 10.0


class Command(BaseCommand):
    help = "Send a recorded Azure LLM trace at the door, at the recorded times, and report how it went."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "trace", type=Path, help="CSV (plain or .gz) with TIMESTAMP, ContextTokens, GeneratedTokens"
        )
        parser.add_argument("--limit", type=int, default=500, help="at most so many requests, from the first")
        parser.add_argument("--speed", type=float, default=1.0, help="recorded times are divided by this")
        parser.add_argument("--max-tokens", type=int, default=64, help="bound on what a request may generate, tokens")
        parser.add_argument("--max-prompt-tokens", type=int, default=64, help="bound on the length of a prompt, tokens")
        parser.add_argument("--in-flight", type=int, default=64, help="at most so many requests at once")
        parser.add_argument("--url", default=None, help="the gateway; this installation's relay by default")
        parser.add_argument("--key", default=None, help="API key; $GATEHOUSE_API_KEY by default")
        parser.add_argument("--model", default=None, help="model to ask; the first that the key may use by default")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it from birth
        for name, highest in (
            ("limit", 1_000_000),
            ("max_tokens", 100_000),
            ("max_prompt_tokens", 100_000),
            ("in_flight", 4096),
        ):
            if not 1 <= options[name] <= highest:
                raise CommandError(f"--{name.replace('_', '-')} must be between 1 and {highest}")
        if not 0 < options["speed"] <= 1e6:
            raise CommandError("--speed must be above 0")
        key = options["key"] or os.environ.get("GATEHOUSE_API_KEY", "")
        if not key:
            raise CommandError("no API key: set $GATEHOUSE_API_KEY or give --key")
        try:
            trace = read_trace(options["trace"], limit=options["limit"])
            door = door_at(options["url"] or settings.GATEHOUSE.public_relay_url, key)
        except (TraceError, DoorError) as error:
            raise CommandError(str(error)) from error
        requests = plan(
            trace,
            speed=options["speed"],
            max_tokens=options["max_tokens"],
            max_prompt_tokens=options["max_prompt_tokens"],
        )
        progress = Progress()
        interrupted = False
        try:
            asyncio.run(_run(requests, door, progress, model=options["model"], in_flight=options["in_flight"]))
        except DoorError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            interrupted = True
        summary = progress.summary()
        self.stdout.write(json.dumps(summary.as_dict()) if options["json"] else table(summary))
        if interrupted:
            self.stderr.write(f"interrupted after {summary.sent} of {len(requests)} requests")
        if summary.failed or interrupted:
            sys.exit(1)


async def _run(
    requests: list[PlannedRequest], door: Door, progress: Progress, *, model: str | None, in_flight: int
) -> None:
    client = DoorClient(door, connections=in_flight)
    try:
        models = await client.models()
        if not models:
            raise DoorError("this key may use no model: grant one to its tenant")
        if model is not None and model not in models:
            raise DoorError(f"this key may not use the model {model}; it may use {', '.join(models[:10])}")
        chosen = model or models[0]
        async with asyncio.TaskGroup() as tasks:
            teller = tasks.create_task(_tell(progress, len(requests)))
            await replay(requests, lambda request: client.chat(request, chosen), progress, in_flight=in_flight)
            teller.cancel()
    finally:
        await client.aclose()


async def _tell(progress: Progress, total: int) -> None:
    """Say on stderr now and then how far it is: a slow engine takes its time."""
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        print(f"{len(progress.results):,} of {total:,} requests are through", file=sys.stderr, flush=True)

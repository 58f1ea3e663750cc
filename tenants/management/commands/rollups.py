"""`manage.py rollups --since 2026-11-01`: make the sums of the ledger anew from its rows, day by day."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from tenants.services.rollups import rebuild_day


class Command(BaseCommand):
    help = "Makes the sums by minute, hour and day (UTC) anew from the ledger's rows. Drains wait for a day at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", type=date.fromisoformat, required=True, help="first day, such as 2026-11-01")
        parser.add_argument("--until", type=date.fromisoformat, help="last day; today when it is not said")

    def handle(self, *args: Any, **options: Any) -> None:
        since: date = options["since"]
        until: date = options["until"] or timezone.now().astimezone(UTC).date()
        if until < since:
            raise CommandError(f"{until} is before {since}.")
        for step in range((until - since).days + 1):
            day = since + timedelta(days=step)
            rows = rebuild_day(datetime(day.year, day.month, day.day, tzinfo=UTC))
            self.stdout.write(f"{day}: {rows} requests")

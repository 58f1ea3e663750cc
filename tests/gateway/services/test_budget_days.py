"""Counters that are built out of the ledger have the tenant's day in them, however long it is (G29)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from core.ids import uuid7_from
from gateway.services.limit_base import read_base
from tenants.models import Limit
from tenants.services.ledger import record_usage
from tests.factories import make_tenant
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db


@pytest.mark.shows("G29")
@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Asia/Tokyo", "2026-11-01", 24),
        ("America/New_York", "2026-11-01", 25),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/Santiago", "2026-09-06", 23),  # has no midnight: its day begins at one
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
    ],
)
def test_a_rebuilt_counter_has_the_whole_day_and_no_other(tmp_path: Path, zone: str, day: str, hours: float) -> None:
    tenant = make_tenant()
    tenant.time_zone = zone
    tenant.save()
    middle = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    local = ZoneInfo(zone)
    start = next(
        moment
        for minutes in range(16 * 60)
        if (moment := middle - timedelta(hours=14) + timedelta(minutes=minutes)).astimezone(local).date().isoformat()
        == day
    )
    end = start + timedelta(hours=hours)
    assert end.astimezone(local).strftime("%H:%M") == "00:00"
    process = uuid4()

    def spend(number: int, at: datetime, tokens: int) -> None:
        row_id = uuid7_from(int(at.timestamp() * 1000), 0, number)
        values = {"tenant_id": tenant.pk, "started_at": at.timestamp(), "output_tokens": 0}
        record_usage([usage_row(process, number, id=row_id, input_tokens=tokens, **values)])

    def counters(at: datetime) -> dict[str, int]:
        base = read_base(int(at.timestamp()), present=[], absent=[], spools=tmp_path)
        return {one.name.removeprefix("c:"): int(one.fields["used"]) for one in base.counters}

    for number, (at, tokens) in enumerate(
        ((start - timedelta(seconds=1), 1), (start, 10), (end - timedelta(seconds=1), 100)), start=1
    ):
        spend(number, at, tokens)
    budget = {"tenant": tenant, "metric": "tokens", "amount": 5000, "window": "day"}
    old = Limit.objects.create(**budget, counts_from=start - timedelta(days=90))
    added = Limit.objects.create(**budget | {"model": "tiny"}, counts_from=start + timedelta(seconds=1))
    today = int(start.timestamp())
    last = counters(end - timedelta(seconds=1))
    assert last == {f"{old.pk.hex}:{today}": 110, f"{added.pk.hex}:{today}": 100}
    spend(4, end, 1000)
    tomorrow = int(end.timestamp())
    assert counters(end) == {f"{limit.pk.hex}:{tomorrow}": 1000 for limit in (old, added)}

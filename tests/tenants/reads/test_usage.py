"""Sums of some keys are those of all keys, without the others'."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest

from core.ids import uuid7_from
from tenants.reads.usage import Only, sum_usage
from tenants.services.ledger import record_usage
from tests.factories import make_key, make_tenant
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db
PROCESS = uuid4()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kathmandu", "Europe/Berlin"])
@pytest.mark.parametrize("only", [Only(), Only(model="m1")])
def test_some_keys_are_told_as_among_all(zone: str, only: Only) -> None:
    tenant, other = make_tenant(), make_tenant()
    keys: list[UUID | None] = [make_key(tenant).key.pk, make_key(tenant).key.pk, make_key(tenant).key.pk, None]
    first = datetime(2026, 10, 22, tzinfo=ZoneInfo(zone))
    starts = [first + timedelta(days=day) for day in range(6)]  # a clock is put back in Berlin meanwhile
    until = datetime(2026, 10, 28, 13, 37, tzinfo=UTC)
    rows = []
    for number in range(200):
        at = first.timestamp() - 7200 + number * 2917  # before the first, and after the last
        whose = other if number % 9 == 0 else tenant
        values: dict[str, Any] = {"tenant_id": whose.pk, "key_id": keys[number % 4], "model": f"m{number % 3}"}
        identity = uuid7_from(int(at * 1000), number, number)
        rows.append(usage_row(PROCESS, number + 1, id=identity, started_at=at, input_tokens=number, **values))
    record_usage(rows)

    def sums(by: list[str], key_ids: list[UUID | None] | None = None) -> set[tuple[Any, ...]]:
        found = sum_usage(
            [tenant.pk],
            starts=starts,
            until=until,
            by=by,
            sums=["requests", "input_tokens"],
            key_ids=key_ids,
            only=only,
        )
        return {tuple(row.values()) for row in found}

    whole = sums(["bucket", "key_id"])
    assert len(whole) > 15
    choices: list[list[UUID | None]] = [[keys[0]], [keys[1], keys[2]], [keys[0], None], [None], keys]
    for chosen in choices:
        assert sums(["bucket", "key_id"], chosen) == {row for row in whole if row[1] in chosen}
    assert sums(["bucket", "key_id"], []) == set()

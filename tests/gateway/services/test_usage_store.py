"""What the database says of a key's own usage, and of a token's subject's; and how a limit's counter is read."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.ids import uuid7_from
from gateway.relay.limit_reader import standing
from gateway.relay.limiting.layout import Counter, counter_of
from gateway.relay.own_usage import UsageAsk, UsageRead, UsageUnavailable
from gateway.services.usage_store import DatabaseUsageStore
from tenants.services.ledger import record_usage
from tenants.usage import UsageRow
from tests.gateway.relay.limiting.valkey import a_limit
from tests.tenants.usage_rows import usage_row

TENANT, KEY, SUBJECT = uuid4(), uuid4(), uuid4()
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
"""In Auckland it is one in the morning of the next day."""


def use(sequence: int, at: datetime, **more: Any) -> Any:
    moment = at.timestamp()
    row_id = uuid7_from(int(moment * 1000), sequence)
    return usage_row(
        UUID(int=1), sequence, **{"id": row_id, "tenant_id": TENANT, "started_at": moment, "cost_micros": 5} | more
    )


@pytest.fixture
def rows(transactional_db: None) -> None:
    mine: list[dict[str, Any]] = [{"key_id": KEY}, {"subject_id": SUBJECT}]
    made: list[UsageRow] = []
    for who in mine:
        for at, more in (
            (NOON - timedelta(hours=2), {}),
            (NOON, {}),
            (NOON, {"model": "large", "outcome": "failed"}),
            (NOON + timedelta(hours=1), {"input_tokens": None, "output_tokens": None, "outcome": "lost"}),
            (NOON - timedelta(days=40), {}),
        ):
            made.append(use(len(made) + 1, at, **who, **more))
    made += [
        use(20, NOON, key_id=uuid4()),
        use(21, NOON, key_id=KEY, tenant_id=uuid4()),
        use(22, NOON, subject_id=uuid4()),
        use(23, NOON, subject_id=SUBJECT, tenant_id=uuid4()),
    ]
    record_usage(made)


def read(store: DatabaseUsageStore | None = None, **more: Any) -> UsageRead:
    asked: dict[str, Any] = {
        "tenant_id": TENANT,
        "key_id": KEY,
        "subject_id": None,
        "since": int((NOON - timedelta(days=10)).timestamp()),
        "until": int((NOON + timedelta(days=10)).timestamp()),
        "time_zone": "UTC",
        "by_day": True,
        "by_model": True,
    }

    async def ask() -> UsageRead:
        asking = store or DatabaseUsageStore(deadline_seconds=30.0)
        try:
            return await asking.read(UsageAsk(**asked | more))
        finally:
            await asking.aclose()

    return asyncio.run(ask())


def told(found: UsageRead) -> list[tuple[Any, ...]]:
    return [(row.day, row.model, row.requests, row.failures, row.input_tokens, row.cost_micros) for row in found.rows]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("who", [{}, {"key_id": None, "subject_id": SUBJECT}], ids=["key", "subject"])
def test_sums_are_told_by_day_and_model(who: dict[str, Any]) -> None:
    assert told(read(**who)) == [("2026-11-17", "large", 1, 1, 3, 5), ("2026-11-17", "tiny", 3, 1, 6, 15)]
    assert told(read(**who, by_model=False)) == [("2026-11-17", None, 4, 2, 9, 20)]
    assert told(read(**who, by_day=False, by_model=False)) == [(None, None, 4, 2, 9, 20)]
    auckland = told(read(**who, by_model=False, time_zone="Pacific/Auckland"))
    assert [(row[0], row[2]) for row in auckland] == [("2026-11-17", 1), ("2026-11-18", 3)]


@pytest.mark.usefixtures("rows")
def test_a_database_that_takes_too_long_is_told(transactional_db: None) -> None:
    with pytest.raises(UsageUnavailable):
        read(DatabaseUsageStore(deadline_seconds=0.0))


NOW = 1_814_443_200.0


@pytest.mark.parametrize(
    ("limit", "fields", "found"),
    [
        (a_limit(window="day", amount=10), {}, (0, 0, 10, 43_200)),
        (a_limit(window="day", amount=10), {"used": 3, "held": 4, "free": 1}, (3, 3, 4, 43_200)),
        (a_limit(window="day", amount=10), {"used": 12}, (12, 0, 0, 43_200)),
        (a_limit("concurrency", "standing", 4), {"held": 3, "free": 1}, (0, 2, 2, 0)),
        (a_limit(amount=10), {"used": 9, f"{NOW - 61:.0f}": 5, f"{NOW - 30:.0f}": 4, "held": 2}, (4, 2, 4, 31)),
        (a_limit(window="bucket", amount=100, refill=2.0), {}, (0, 0, 100, 0)),
        (
            a_limit(window="bucket", amount=100, refill=2.0),
            {"level": "10.5", "at": int((NOW - 10) * 1_000_000), "held": 7},
            (70, 0, 30, 35),
        ),
    ],
    ids=["unused", "calendar", "overrun", "standing", "minute", "full bucket", "bucket"],
)
def test_a_counter_says_how_its_limit_stands(limit: Any, fields: dict[str, Any], found: tuple[int, ...]) -> None:
    counter: Counter = counter_of(limit, NOW)
    raw = {name.encode(): str(value).encode() for name, value in fields.items()}
    assert tuple(standing(limit, counter, raw, amount=limit.amount, clock=NOW)) == found

"""Counts of refusals come into the database once each, through a real stream."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import redis
from django.db.models import Sum

from gateway.services.refusals import RefusalDrain
from tenants.models import RefusalMinute
from tenants.refusals import STREAM, RefusalBatch, RefusalCount, encode_batch
from tenants.services.refusals import prune_refusals, record_refusals

pytestmark = pytest.mark.django_db
TENANT, KEY, PROCESS = uuid4(), uuid4(), uuid4()
MINUTE = 1_760_000_040


def _count(refusals: int = 1, tenant_id: UUID | None = TENANT, **more: str) -> RefusalCount:
    words = {"model": "tiny", "code": "rate_limit_exceeded", "metric": "tokens", "window": "minute"} | more
    return RefusalCount(
        tenant_id, KEY, words["model"], words["code"], 429, words["metric"], words["window"], MINUTE, refusals
    )


def _total() -> int:
    return RefusalMinute.objects.aggregate(n=Sum("refusals"))["n"] or 0


def test_a_batch_counts_once_and_batches_add_up() -> None:
    first = RefusalBatch(PROCESS, 1, [_count(3), _count(2, tenant_id=None), _count(1, metric="requests")])
    assert record_refusals([first, first, RefusalBatch(PROCESS, 2, [_count(4)])]) == 2
    assert record_refusals([first]) == 0
    assert record_refusals([RefusalBatch(uuid4(), 1, [_count(10), _count(10, tenant_id=None)])]) == 1
    assert _total() == 30
    row = RefusalMinute.objects.get(tenant_id=TENANT, metric="tokens")
    assert (row.refusals, row.status, row.window, row.key_id) == (17, 429, "minute", KEY)
    assert row.minute == datetime.fromtimestamp(MINUTE, UTC)


def test_old_counts_go() -> None:
    record_refusals([RefusalBatch(PROCESS, 1, [_count(3), _count(2, tenant_id=None), _count(1, metric="requests")])])
    at = datetime.fromtimestamp(MINUTE, UTC)
    assert prune_refusals(now=at + timedelta(days=1), older_than=timedelta(days=1)) == 0
    assert prune_refusals(now=at + timedelta(days=1, minutes=1), older_than=timedelta(days=1), most=1) == 3


@pytest.fixture
def client(valkey_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(valkey_url) as client:
        yield client
        client.delete("rt:" + STREAM)


@pytest.mark.django_db(transaction=True)
def test_what_was_counted_before_a_crash_is_not_counted_again(client: "redis.Redis") -> None:
    drain = RefusalDrain(client, prefix="rt:", stop=threading.Event())
    assert drain.turn() == 0
    for sequence in (1, 2):
        client.xadd("rt:" + STREAM, {"d": encode_batch(RefusalBatch(PROCESS, sequence, [_count(5)]))})
    client.xadd("rt:" + STREAM, {"d": b"nonsense"})
    record_refusals([RefusalBatch(PROCESS, 1, [_count(5)])])  # by a worker that died before it deleted the entry
    assert drain.turn() == 3
    assert (_total(), client.xlen("rt:" + STREAM)) == (10, 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("status", "minute"), [(99_999, MINUTE), (429, 10**15), (429, 10**18)])
def test_a_batch_that_cannot_be_stored_keeps_no_other_from_being_counted(
    client: "redis.Redis", status: int, minute: int
) -> None:
    odd = RefusalCount(TENANT, KEY, "", "x", status, "", "", minute, 1)
    for sequence, count in enumerate([_count(5), odd, _count(6)], 1):
        client.xadd("rt:" + STREAM, {"d": encode_batch(RefusalBatch(PROCESS, sequence, [count]))})
    assert RefusalDrain(client, prefix="rt:", stop=threading.Event()).turn() == 3
    assert (_total(), client.xlen("rt:" + STREAM)) == (11, 0)

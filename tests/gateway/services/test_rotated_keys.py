"""Counters of a key's own limits while it is rotated and both keys work: one budget, rebuilt and compared as one."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.utils import timezone

from core.ids import uuid7
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Limit
from tenants.services import InvalidInput, revoke_api_key, rotate_api_key
from tenants.services.spent_keys import delete_spent_key
from tests.factories import make_key
from tests.gateway.services.limit_rig import Rig

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        yield Rig(client, tmp_path / "spool")


def rotated(key: ApiKey) -> ApiKey:
    return rotate_api_key(key.pk, overlap=timedelta(hours=1), actor=SYSTEM).key


@pytest.mark.shows("R142")
def test_both_keys_use_is_in_the_counters_that_are_rebuilt(rig: Rig) -> None:
    first = make_key(rig.tenant, rpm_limit=10).key
    day, minute = rig.limit("tokens", key=first), rig.limit("tokens", "minute", key=first)
    bucket = rig.limit("requests", "bucket", key=first, refill_per_second=1.0)
    other = rig.limit("tokens", key=make_key(rig.tenant).key)
    rig.keeper.turn()
    process, before = uuid7(), time.time()
    rig.spend(process, 1, key_id=first.pk)
    second = rotated(first)
    rig.spend(process, 2, key_id=first.pk)
    rig.spend(process, 3, key_id=second.pk)
    third = rotated(second)
    rig.spend(process, 4, key_id=third.pk)
    rig.spend(process, 5, key_id=second.pk)
    assert set(Limit.objects.filter(key=third)) == {day, minute, bucket}
    rig.lose()
    rig.keeper.turn()
    assert rig.counts(day) == (5 * 7, 0)
    assert int(rig.state(f"w:{minute.pk.hex}")["used"]) == 5 * 7
    assert int(rig.state(f"w:{first.pk.hex}")["used"]) == 5
    assert 95 <= int(rig.state(f"b:{bucket.pk.hex}")["level"]) <= 95 + time.time() - before + 1
    assert rig.counts(other) == (0, 0)


def test_reconciling_finds_nothing_wrong_with_a_rotation_and_sets_right_what_is(rig: Rig) -> None:
    first = make_key(rig.tenant).key
    day = rig.limit("tokens", key=first)
    rig.keeper.turn()
    process = rig.process()
    process.join()
    counter = rig.counter(day)

    def spend(key: ApiKey, sequence: int) -> None:
        process.reserve(counter, 7)
        process.report(counter, used=7, given=7, through=sequence)
        rig.spend(process.id, sequence, key_id=key.pk)

    spend(first, 1)
    second = rotated(first)
    assert rig.counter(day).name == counter.name
    spend(first, 2)
    spend(second, 3)
    revoke_api_key(first.pk, actor=SYSTEM)
    spend(second, 4)
    found = rig.compare()
    assert (found.used, found.ledger, found.applied) == (28, 28, 0)
    rig.set_used(day, 14)
    assert rig.compare().applied == 14
    assert rig.counts(day) == (28, 0)


def test_a_key_that_was_rotated_out_cannot_be_deleted_while_its_use_counts(rig: Rig) -> None:
    """Else the next comparing would give back what it had used."""
    first = make_key(rig.tenant).key
    day = rig.limit("tokens", key=first)
    rig.keeper.turn()
    second = rotated(first)
    third = rotated(second)
    rig.spend(uuid7(), 1, key_id=second.pk)
    for key in (first, second):
        revoke_api_key(key.pk, actor=SYSTEM)
    delete_spent_key(first.pk, actor=SYSTEM)  # under its id the limits are: its use is found without it
    with pytest.raises(InvalidInput, match="counts under the limits of the key that it was rotated into"):
        delete_spent_key(second.pk, actor=SYSTEM)
    rig.lose()
    rig.keeper.turn()
    assert rig.counts(day) == (7, 0)
    ApiKey.objects.filter(pk=second.pk).update(revoked_at=timezone.now() - timedelta(days=40))
    delete_spent_key(second.pk, actor=SYSTEM)
    assert [*Limit.objects.values_list("key", flat=True)] == [third.pk]

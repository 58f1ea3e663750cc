"""Limits that were changed are compared with the ledger at once: their counters may be new ones."""

from collections.abc import Iterator
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import redis

from core.ids import uuid7
from gateway.models import EndedSpool
from gateway.services.limit_keeper import KeeperTimes, LimitKeeper
from tenants.actor import SYSTEM
from tenants.models import Tenant
from tenants.services.departments import change_tenant, set_parent
from tenants.services.limits import change_limit
from tests.factories import make_tenant
from tests.gateway.services.limit_rig import Rig
from tests.waiting import stay_within_a_day, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        yield Rig(client, tmp_path / "spool")


@pytest.fixture
def rarely(rig: Rig) -> LimitKeeper:
    """A keeper that has compared everything just now, and does so again in an hour."""
    keeper = rig.new_keeper(KeeperTimes(compare=3600.0, look=0.01, slices=0.0, join=0.0, ledger=0.0, again=0.0))
    keeper.turn()  # builds
    keeper.turn()  # compares
    keeper.turn()  # notes how far limits have changed
    return keeper


def test_a_budget_of_a_changed_zone_begins_with_what_the_ledger_has(rig: Rig, rarely: LimitKeeper) -> None:
    stay_within_a_day(ZoneInfo("Asia/Kolkata"))
    limit = rig.limit()
    other = rig.limit("tokens")
    rig.spend(uuid7(), 1)
    rig.set_used(other, 50)
    rarely.turn()
    assert rig.counts(limit) == (0, 0)  # nobody changed anything
    change_tenant(rig.tenant.pk, time_zone="Asia/Kolkata", actor=SYSTEM)
    rarely.turn()
    assert rig.counts(limit) == (1, 0)
    assert rig.counts(other) == (7, 0)


def test_what_a_department_used_counts_under_its_new_parent_at_once(rig: Rig, rarely: LimitKeeper) -> None:
    above = make_tenant()
    of_all = rig.limit(tenant=make_tenant())
    Tenant.objects.filter(pk=above.pk).update(parent=of_all.tenant)
    limit, alone = rig.limit(tenant=above, subtree=True), rig.limit(tenant=above)
    over_all = rig.limit(tenant=of_all.tenant, subtree=True)
    rig.spend(uuid7(), 1)
    set_parent(rig.tenant.pk, above.pk, actor=SYSTEM)
    rarely.turn()
    assert [rig.counts(one) for one in (limit, over_all, alone, of_all)] == [(1, 0), (1, 0), (0, 0), (0, 0)]
    set_parent(rig.tenant.pk, None, actor=SYSTEM)

    def taken_away() -> bool:  # not at once again: comparing takes at most a share of the time
        rarely.turn()
        return rig.counts(limit) == (0, 0)

    wait_until(taken_away, "the department's use to leave its old parent's counter")


def test_what_the_dead_hold_is_left_to_the_turn_of_all_counters(rig: Rig, rarely: LimitKeeper) -> None:
    limit, other = rig.limit(), rig.limit("tokens")
    process = rig.process()
    process.join()
    for one in (limit, other):
        process.reserve(rig.counter(one), 5)
    process.die()
    rig.spend(process.id, 1)
    EndedSpool.objects.create(process_id=process.id, sequence=1)
    rig.keeper.compare_now(correct=False)  # sweeps nothing
    change_limit(limit.pk, amount=50, actor=SYSTEM)
    rarely.turn()
    assert rig.counts(other) == (0, 5)
    rig.keeper.compare_now()
    assert [rig.counts(one) for one in (limit, other)] == [(1, 0), (7, 0)]

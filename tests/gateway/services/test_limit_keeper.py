"""Limit counters are rebuilt from the ledger when they are lost, and set right when they differ from it."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from django.utils import timezone

from core.ids import uuid7
from gateway.models import EndedSpool
from gateway.relay.spool import Spool
from gateway.services.limit_base import calendar_limits
from gateway.services.limit_counters import KeeperStopped, LimitCounters
from gateway.services.limit_keeper import KeeperTimes
from tenants.models import LedgerMark, LimitGeneration, Tenant
from tenants.usage import OpenRow
from tests.factories import make_key
from tests.gateway.services.limit_rig import PREFIX, Rig
from tests.tenants.usage_rows import usage_row
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        yield Rig(client, tmp_path / "spool")


def test_the_first_start_builds_a_generation_without_waiting_for_slices(rig: Rig) -> None:
    keeper = rig.new_keeper(KeeperTimes(slices=60.0, join=0.0))
    begun = time.monotonic()
    keeper.turn()
    assert time.monotonic() - begun < 30
    generation = rig.state("gen")
    assert generation["state"] == "ready"
    assert generation["run"] == rig.client.info("server")["run_id"]
    assert LimitGeneration.objects.get().generation.hex == generation["id"]


def test_lost_counters_are_built_from_the_ledger(rig: Rig) -> None:
    requests, tokens = rig.limit(), rig.limit("tokens", "month")
    of_model = rig.limit("money", model="tiny")
    later = rig.limit("input_tokens", counts_from=timezone.now() + timedelta(seconds=30))
    rig.keeper.turn()
    process = uuid7()
    for sequence in (1, 2, 3):
        rig.spend(process, sequence, cost_micros=50, model="tiny" if sequence > 1 else "large")
    rig.lose()
    rig.client.set(f"{PREFIX}lim:left-over", "of before")
    rig.keeper.turn()
    assert [rig.counts(limit) for limit in (requests, tokens, of_model, later)] == [(3, 0), (21, 0), (100, 0), (0, 0)]
    assert rig.state("marks") == {process.hex: "3"}
    assert not rig.client.exists(f"{PREFIX}lim:left-over")
    assert rig.recovered == 2
    period = rig.counter(requests)
    assert rig.state(period.name)["end"] == str(period.end)
    assert rig.client.ttl(f"{PREFIX}lim:{period.name}") > 86_400


def test_what_joined_processes_hold_and_have_beyond_their_mark_is_left_to_them(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    process = rig.process()
    rig.spend(process.id, 1)
    rig.spend(process.id, 3)  # after a gap: the process counts it itself
    rig.lose()
    building = rig.new_keeper(KeeperTimes(slices=0.0, join=5.0, ledger=0.0))
    thread = threading.Thread(target=building.turn)
    thread.start()
    wait_until(lambda: process.join((rig.counter(limit), 5)) == "ok", "it joins")
    assert process.reserve(rig.counter(limit), 1) == "lost"  # nothing is granted meanwhile
    thread.join(30)
    assert rig.counts(limit) == (1, 5)
    assert rig.state("marks") == {process.id.hex: "1"}


def test_minutes_are_built_by_the_second_and_forget(rig: Rig) -> None:
    limit = rig.limit("tokens", "minute")
    key = make_key(rig.tenant, rpm_limit=10).key
    rig.keeper.turn()
    now = int(time.time())
    process = uuid7()
    rig.spend(process, 1, started_at=now - 30.5, key_id=key.pk)
    rig.spend(process, 2, started_at=now - 5.2)
    rig.spend(process, 3, started_at=now - 90.0)
    rig.lose()
    rig.keeper.turn()
    built = rig.state(f"w:{limit.pk.hex}")
    assert built == {"used": "14", str(now - 30): "7", str(now - 5): "7", "head": str(now - 30), "last": str(now - 5)}
    assert rig.state(f"w:{key.pk.hex}")["used"] == "1"


def test_a_bucket_is_never_fuller_than_it_was(rig: Rig) -> None:
    limit = rig.limit("requests", "bucket", amount=10, refill_per_second=0.1)
    slow = rig.limit("tokens", "bucket", amount=10_000_000, refill_per_second=0.1)
    rig.keeper.turn()
    process = uuid7()
    for sequence in (1, 2, 3):
        rig.spend(process, sequence)
    rig.lose()
    rig.keeper.turn()
    assert rig.state(f"b:{limit.pk.hex}")["level"] == "7"
    assert rig.state(f"b:{slow.pk.hex}")["level"] == "0"


def test_a_living_process_that_does_not_join_is_held_to_use_what_its_spool_has(rig: Rig) -> None:
    limit = rig.limit("tokens")
    rig.keeper.turn()
    silent = uuid7()
    spool = Spool.create(rig.spools, silent, cap_bytes=1 << 20)
    for sequence in (1, 2):
        spool.append_row(usage_row(silent, sequence, tenant_id=rig.tenant.pk, started_at=time.time()))
    spool.append_open(
        OpenRow(
            uuid7(), rig.tenant.pk, None, "tiny", "relay", "chat", False, time.time(),
            reserved_input=30, reserved_output=40,
        )
    )  # fmt: skip
    rig.spend(silent, 1)
    rig.lose()
    rig.keeper.turn()
    assert rig.counts(limit) == (7, 77)  # one row is in the ledger, one not yet, one request runs
    assert rig.process(silent).join() == "ok"  # it speaks for itself now
    assert rig.counts(limit) == (7, 0)
    spool.release()


def test_counters_out_of_another_servers_file_are_not_trusted(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    rig.set_used(limit, 50)
    rig.client.hset(f"{PREFIX}lim:gen", "run", "another")
    rig.keeper.turn()
    assert rig.counts(limit) == (0, 0)


@pytest.mark.shows("G5")
@pytest.mark.parametrize("wrong", [0, 1, 90])
def test_a_counter_that_differs_is_made_what_the_ledger_says(rig: Rig, wrong: int) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    process = rig.process()
    process.join()
    counter = rig.counter(limit)
    for sequence in (1, 2, 3):
        process.reserve(counter, 1)
        process.report(counter, used=1, given=1, through=sequence)
        rig.spend(process.id, sequence)
    process.reserve(counter, 1)
    assert rig.counts(limit) == (3, 1)
    rig.set_used(limit, wrong)
    found = rig.compare()
    assert (found.used, found.held, found.ledger, found.applied) == (wrong, 1, 3, 3 - wrong)
    assert rig.counts(limit) == (3, 1)
    assert rig.compare().applied == 0


def test_rows_that_are_not_reported_yet_are_not_missing(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    process = rig.process()
    process.join()
    counter = rig.counter(limit)
    for _ in range(3):
        process.reserve(counter, 1)
    process.report(counter, used=1, given=1, through=1)
    for sequence in (1, 2, 3):
        rig.spend(process.id, sequence)
    assert rig.compare().applied == 0
    assert rig.counts(limit) == (1, 2)


def test_while_the_ledger_is_behind_nothing_is_found_to_be_too_much(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.services.limit_compare.LEDGER_WAIT_SECONDS", 0.1)
    few, many = rig.limit(), rig.limit("tokens")
    rig.keeper.turn()
    process = rig.process()
    process.join()
    process.reserve(rig.counter(few), 2)
    process.report(rig.counter(few), used=2, given=2, through=2)
    rig.spend(process.id, 1)  # the second is on its way
    applied = {found.limit.id: found.applied for found in rig.keeper.compare_now()}
    assert applied == {few.pk: 0, many.pk: 7}
    rig.spend(process.id, 2)
    applied = {found.limit.id: found.applied for found in rig.keeper.compare_now()}
    assert applied == {few.pk: 0, many.pk: 7}


def test_what_a_dead_process_held_goes_once_its_spool_is_in_the_ledger(rig: Rig) -> None:
    limit = rig.limit("tokens")
    rig.keeper.turn()
    process = rig.process()
    process.join()
    counter = rig.counter(limit)
    process.reserve(counter, 50)
    process.report(counter, used=7, given=10, through=1)
    rig.spend(process.id, 1)
    process.die()
    assert rig.counts(limit) == (7, 40)
    rig.compare()
    assert rig.counts(limit) == (7, 40)  # what it did at the end is not known
    rig.spend(process.id, 2)
    rig.spend(
        process.id, 3, outcome="lost", input_tokens=None, output_tokens=None, reserved_input=9, reserved_output=11
    )
    rig.compare()
    assert rig.counts(limit) == (7, 40)
    EndedSpool.objects.create(process_id=process.id, sequence=3)
    rig.compare()
    assert rig.counts(limit) == (34, 0)
    assert not rig.client.exists(f"{PREFIX}lim:orphans")
    assert rig.state("through")[process.id.hex] == "3"
    assert rig.compare().applied == 0


def test_rows_that_another_process_took_over_count_once(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    dead, adopter = rig.process(), rig.process()
    counter = rig.counter(limit)
    for process in (dead, adopter):
        process.join()
        process.reserve(counter, 2)
        process.report(counter, used=1, given=1, through=1)
    rig.spend(adopter.id, 1)
    dead.die()
    rig.client.hset(f"{PREFIX}lim:adopted", dead.id.hex, f"{adopter.id.hex}:2:3")
    assert rig.counts(limit) == (2, 2)
    rig.compare()
    assert rig.counts(limit) == (2, 2)  # the dead one's first row is not in the ledger
    for sequence in (2, 3):  # its first and its last
        rig.spend(adopter.id, sequence)
    rig.compare()
    assert rig.counts(limit) == (3, 1)
    assert rig.compare().applied == 0
    adopter.report(counter, used=1, given=1, through=4)
    rig.spend(adopter.id, 4)
    assert rig.compare().applied == 0
    assert rig.counts(limit) == (4, 0)
    assert rig.state("adopted") == {}


def test_a_keeper_that_lost_its_lock_changes_nothing(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    rig.set_used(limit, 9)
    late = LimitCounters(rig.client, prefix=PREFIX)
    assert late.lock()
    assert not LimitCounters(rig.client, prefix=PREFIX).lock()
    rig.client.set(f"{PREFIX}lim:keeper", "another")
    with pytest.raises(KeeperStopped):
        late.extend()
    with pytest.raises(KeeperStopped):
        late.begin(uuid4(), "run")
    assert rig.counts(limit) == (9, 0)
    late.unlock()
    assert rig.client.get(f"{PREFIX}lim:keeper") == "another"


def test_a_rebuild_that_was_left_in_the_middle_is_begun_again(rig: Rig) -> None:
    rig.client.hset(f"{PREFIX}lim:gen", mapping={"id": uuid4().hex, "state": "rebuilding", "since": 1, "run": "x"})
    rig.keeper.turn()
    assert rig.state("gen")["state"] == "ready"


def test_comparing_is_one_keepers_at_a_time_and_not_more_often_than_said(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    keepers = [rig.new_keeper(KeeperTimes(compare=30.0)) for _ in range(2)]
    for keeper in keepers:
        rig.set_used(limit, 5)
        keeper.turn()
    assert rig.counts(limit) == (5, 0)  # the second left it alone
    assert len(calendar_limits(time.time())) == 1


@pytest.mark.parametrize("rows", [0, 1])
def test_a_dead_process_whose_spool_never_turns_up_is_given_up_an_hour_after_its_death(rig: Rig, rows: int) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    process = rig.process()
    process.join()
    counter = rig.counter(limit)
    process.reserve(counter, 5)
    for sequence in range(1, rows + 1):
        rig.spend(process.id, sequence)
        LedgerMark.objects.update(updated_at=datetime(2026, 1, 1, tzinfo=UTC))  # it had nothing to do for long
        process.report(counter, used=1, given=1, through=sequence)
    process.die()
    rig.compare()
    assert rig.counts(limit) == (rows, 5 - rows)
    died = int(rig.state("dead")[process.id.hex])
    rig.client.hset(f"{PREFIX}lim:dead", process.id.hex, died - 3_000)
    rig.compare()
    assert rig.counts(limit) == (rows, 5 - rows)
    rig.client.hset(f"{PREFIX}lim:dead", process.id.hex, died - 3_602)
    rig.compare()
    assert rig.counts(limit) == (rows, 0)
    assert not rig.client.exists(f"{PREFIX}lim:orphans")


def test_marks_of_the_long_gone_are_forgotten(rig: Rig) -> None:
    limit = rig.limit()
    rig.keeper.turn()
    gone = rig.process()
    gone.join()
    gone.reserve(rig.counter(limit), 1)
    gone.report(rig.counter(limit), used=1, given=1, through=1)
    rig.spend(gone.id, 1)
    gone.die()
    rig.compare()
    assert gone.id.hex in rig.state("through")
    LedgerMark.objects.update(updated_at=datetime(2026, 1, 1, tzinfo=UTC))
    rig.compare()
    assert gone.id.hex not in rig.state("through")
    assert rig.compare().applied == 0
    assert rig.counts(limit) == (1, 0)
    assert Tenant.objects.count() == 1

"""The book of devices on both stores: never two holders, never over the sum, all devices of a claim or none."""

import asyncio
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from gpupool.leases.base import Conflict, CreatedAt, Delete, LeaseStore, ModifiedAt, Outcome, Put, StoreUnavailable
from gpupool.leases.devices import MOST_DEVICES, Allocated, Denied, claim_key, pool_key
from gpupool.leases.fencing import Superseded
from gpupool.policies.device_record import RecordedClaim, Standing, Status, as_reported, mend, with_claim
from gpupool.policies.lease import Portion
from tests.gpupool.leases.books import NODE, Forgetful, a_book, device, facts_of, settle
from tests.gpupool.leases.contract import put
from tests.pace import pace


@pytest.mark.shows("R32", "R122")
async def test_a_claim_is_one_record_and_a_portion_on_every_device(any_store: LeaseStore) -> None:
    book = a_book(any_store, base=1000)
    await settle(book, [facts_of(0), facts_of(1), facts_of(2)])
    wanted = {device(0): Portion(4, 0.5), device(1): Portion(6)}
    claim = await book.allocate("instance:a", wanted, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    view = await book.read()
    entry = await any_store.get(claim_key("instance:a"))
    assert entry is not None
    assert claim.token == 1000 + entry.create_revision == view.book.claims["instance:a"].token
    assert view.book.claims["instance:a"].record.portions == wanted
    record = view.book.records[device(0)]
    assert (record.status, record.capacity_bytes, record.boot_id) == (Status.ALLOCATED, 10, "first")
    assert [(held.holder, held.portion) for held in record.claims] == [("instance:a", Portion(4, 0.5))]
    assert record.at > 0
    assert view.book.records[device(2)].status == Status.FREE
    # All that was written together carries one event id and one revision.
    assert {view.book.records[device(n)].event_id for n in (0, 1)} == {view.book.claims["instance:a"].record.event_id}
    assert {view.modified[device(n)] for n in (0, 1)} == {entry.create_revision}

    later = await book.allocate("instance:b", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    assert isinstance(later, Allocated)
    assert later.token > claim.token
    assert not await book.release("instance:a", token=claim.token + 1)  # somebody else's
    assert await book.release("instance:a", token=claim.token)
    assert not await book.release("instance:a")
    view = await book.read()
    assert [held.holder for held in view.book.records[device(0)].claims] == ["instance:b"]
    assert view.book.records[device(1)].status == Status.FREE


@pytest.mark.shows("P1", "P18")
async def test_all_devices_or_none(any_store: LeaseStore) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0), facts_of(1, size=5), replace(facts_of(2), allocatable=False)])
    denied = await book.allocate(
        "instance:a", {device(0): Portion(6), device(1): Portion(6)}, node_id=NODE, boot_id="first"
    )
    assert isinstance(denied, Denied)
    assert (denied.device_id, "5 B can be claimed" in denied.reason) == (device(1), True)
    for other, portion in ((9, Portion(1)), (1, Portion(9, whole=True)), (2, Portion(1))):  # unknown, small, divided
        bad = {device(0): Portion(1), device(other): portion}
        outcome = await book.allocate("instance:a", bad, node_id=NODE, boot_id="first")
        assert isinstance(outcome, Denied)
        assert outcome.device_id == device(other)
    assert isinstance(
        await book.allocate("instance:a", {device(0): Portion(1)}, node_id=NODE, boot_id="second"), Denied
    )
    view = await book.read()
    assert view.book.claims == {}
    assert {record.status for record in view.book.records.values()} == {Status.FREE}
    with pytest.raises(ValueError, match="devices"):
        await book.allocate("instance:a", {}, node_id=NODE, boot_id="first")


@pytest.mark.shows("P14")
async def test_two_hundred_claims_at_once_give_no_device_two_holders(any_store: LeaseStore) -> None:
    books = [a_book(any_store), a_book(any_store)]  # two leaders who do not know of each other
    everything = [facts_of(number) for number in range(1000)]
    await settle(books[0], everything)
    started = time.monotonic()
    # 100 devices are wanted whole by two each, and every claim is on a second device, too, that others share.
    claims = await asyncio.gather(
        *(
            books[number % 2].allocate(
                f"instance:{number}",
                {device(number // 2): Portion(10, whole=True), device(500 + number % 25): Portion(1)},
                node_id=NODE,
                boot_id="first",
            )
            for number in range(200)
        )
    )
    took = time.monotonic() - started
    won = [number for number, claim in enumerate(claims) if isinstance(claim, Allocated)]
    assert len(won) == len({number // 2 for number in won}) == 100
    view = await books[0].read()
    for number, record in view.book.records.items():
        assert sum(held.memory_bytes for held in record.claims) <= 10, number
        assert len(record.claims) == 1 or not any(held.whole for held in record.claims)
    assert set(view.book.claims) == {f"instance:{number}" for number in won}
    tokens = [claim.token for claim in claims if isinstance(claim, Allocated)]
    assert len(set(tokens)) == len(tokens)
    print(f"200 claims of two devices each: {took:.2f} s")


async def test_a_book_of_a_thousand_devices_is_read_and_compared_quickly(any_store: LeaseStore) -> None:
    book, everything = a_book(any_store), [facts_of(number) for number in range(1000)]
    await settle(book, everything)
    before, started = pace(), time.process_time()
    await settle(book, everything)
    took = (time.process_time() - started) / min(before, pace())
    assert took < 1.0
    print(f"a look at 1,000 records that agree: {took * 1000:.0f} ms of CPU")


@pytest.mark.shows("P11", "P13")
async def test_a_leader_who_was_replaced_writes_nothing_into_the_book(any_store: LeaseStore) -> None:
    old = await put(any_store, "/leader/controller", b"old")
    book = a_book(any_store, guards=[CreatedAt("/leader/controller", old)])
    await settle(book, [facts_of(0)])
    claim = await book.allocate("instance:a", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    view = await book.read()
    await any_store.transact([], [Delete("/leader/controller")])
    await put(any_store, "/leader/controller", b"new")
    with pytest.raises(Superseded):
        await book.allocate("instance:b", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    with pytest.raises(Superseded):
        await book.release("instance:a")
    with pytest.raises(Superseded):
        await book.mark(device(0), Standing.FAILED, reason="it fell")
    with pytest.raises(Superseded):
        await settle(book, [facts_of(0, standing=Standing.FAILED)])
    assert (await book.read()).book == view.book


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_claim_whose_answer_was_lost_is_found_by_who_asks_again_and_not_made_twice(
    any_store: LeaseStore, lost: str
) -> None:
    forgetful = Forgetful(any_store)
    book = a_book(forgetful)
    await settle(a_book(any_store), [facts_of(0)])
    forgetful.lose = lost
    with pytest.raises(StoreUnavailable):
        await book.allocate("instance:a", {device(0): Portion(6)}, node_id=NODE, boot_id="first")
    # Nobody wrote down that claim: a leader's next look ends it, and all bytes are there again.
    view = await settle(a_book(any_store), [facts_of(0)])
    assert view.book.claims == {}
    assert view.book.records[device(0)].claims == ()
    again = await book.allocate("instance:a", {device(0): Portion(10)}, node_id=NODE, boot_id="first")
    assert isinstance(again, Allocated)


@pytest.mark.shows("R31", "R32")
async def test_a_holder_may_be_a_pod_in_its_namespace_and_keys_are_laid_out_as_told(any_store: LeaseStore) -> None:
    book, pod = a_book(any_store), "research/7c2b6a0e-1d5c-4f0e-9d0b-6c1f5b8e2a11"
    await settle(book, [facts_of(0)])
    claim = await book.allocate(pod, {device(0): Portion(4)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    keys = [entry.key for entry in (await any_store.range("/gpu/")).entries]
    assert f"/gpu/pools/{device(0)}" in keys
    assert [held.holder for held in (await book.read()).book.records[device(0)].claims] == [pod]
    assert await book.release(pod, token=claim.token)


@pytest.mark.shows("R31")
async def test_a_record_that_names_a_holder_without_a_claim_becomes_unknown_when_a_comparison_fails(
    any_store: LeaseStore,
) -> None:
    book = a_book(any_store)
    view = await settle(book, [facts_of(0)])
    stranger = msgspec.json.encode(with_claim(view.book.records[device(0)], "instance:ghost", Portion(1)))

    class Late:
        """Somebody else writes between this one's look and its write, once."""

        def __init__(self) -> None:
            self.done = False

        def __getattr__(self, name: str) -> Any:
            return getattr(any_store, name)

        async def transact(self, conditions: object, operations: object) -> Outcome:
            if not self.done:
                self.done = True
                await put(any_store, pool_key(device(0)), stranger)
            return await any_store.transact(conditions, operations)  # type: ignore[arg-type]  # both are passed on as they came

    late = a_book(Late())
    denied = await late.allocate("instance:a", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    assert isinstance(denied, Denied)
    assert "instance:ghost, who has no claim" in denied.reason
    assert (await book.read()).book.records[device(0)].status == Status.UNKNOWN
    # And there is a way back: who mends it finds that nobody holds it.
    assert (await settle(book, [facts_of(0)])).book.records[device(0)].status == Status.FREE


@pytest.mark.shows("R31")
async def test_a_release_compares_the_holder_and_doubts_a_record_that_names_another(any_store: LeaseStore) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0)])
    claim = await book.allocate("instance:a", {device(0): Portion(4)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    empty = facts_of(0)
    await put(any_store, pool_key(device(0)), msgspec.json.encode(as_reported(empty, ())))
    assert await book.release("instance:a", token=claim.token)
    record = (await book.read()).book.records[device(0)]
    assert (record.status, record.reason) == (Status.UNKNOWN, "its record does not name who held it")
    assert (await settle(book, [empty])).book.records[device(0)].status == Status.FREE


@pytest.mark.shows("P15", "R30")
async def test_a_device_that_failed_or_fell_silent_takes_no_claim_and_comes_back_with_what_it_held(
    any_store: LeaseStore,
) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0)])
    claim = await book.allocate("instance:a", {device(0): Portion(4)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    recorded = [RecordedClaim("instance:a", claim.token, NODE, "first", {device(0): Portion(4)})]
    ids = set()
    for standing in (Standing.UNKNOWN, Standing.FAILED):
        view = await settle(book, [facts_of(0, standing=standing)], recorded)
        record = view.book.records[device(0)]
        ids.add(record.event_id)
        assert (record.status, len(record.claims)) == (Status(standing.value), 1)
        refused = await book.allocate("instance:b", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
        assert refused == Denied(device(0), f"it is {standing}")
    view = await settle(book, [facts_of(0)], recorded)
    assert view.book.records[device(0)].status == Status.ALLOCATED
    assert len(ids | {view.book.records[device(0)].event_id}) == 3  # each change is an event with an id of its own
    assert isinstance(
        await book.allocate("instance:b", {device(0): Portion(6)}, node_id=NODE, boot_id="first"), Allocated
    )


async def test_marking_is_compared_and_kept_until_the_reports_say_otherwise(any_store: LeaseStore) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0)])
    assert await book.mark(device(0), Standing.FAILED, reason="it fell")
    assert (await book.read()).book.records[device(0)].reason == "it fell"
    assert await book.mark(device(0), Standing.OK)
    assert (await book.read()).book.records[device(0)].status == Status.FREE
    assert not await book.mark(UUID(int=9), Standing.FAILED)


@pytest.mark.shows("P19")
async def test_a_device_inventoried_under_a_new_boot_has_no_claims_of_the_last(any_store: LeaseStore) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0)])
    claim = await book.allocate("instance:a", {device(0): Portion(4)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    stale = [RecordedClaim("instance:a", claim.token, NODE, "first", {device(0): Portion(4)})]
    view = await settle(book, [facts_of(0, boot="second")], stale)
    assert view.book.claims == {}
    assert (view.book.records[device(0)].status, view.book.records[device(0)].boot_id) == (Status.FREE, "second")
    late = await book.allocate("instance:b", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    assert isinstance(late, Denied)
    assert isinstance(
        await book.allocate("instance:b", {device(0): Portion(10)}, node_id=NODE, boot_id="second"), Allocated
    )


async def test_a_book_that_was_lost_is_written_again_from_the_database_with_the_same_tokens(
    any_store: LeaseStore,
) -> None:
    recorded = [RecordedClaim("instance:a", 77, NODE, "first", {device(0): Portion(4), device(1): Portion(2)})]
    view = await settle(a_book(any_store, base=500), [facts_of(0), facts_of(1)], recorded)
    assert view.book.claims["instance:a"].token == 77
    assert [len(view.book.records[device(n)].claims) for n in (0, 1)] == [1, 1]
    later = await a_book(any_store, base=500).allocate(
        "instance:b", {device(0): Portion(6)}, node_id=NODE, boot_id="first"
    )
    assert isinstance(later, Allocated)
    assert later.token > 500


async def test_a_mending_that_others_overtook_changes_nothing_of_theirs(any_store: LeaseStore) -> None:
    book = a_book(any_store)
    view = await settle(book, [facts_of(0)])
    assert isinstance(
        await book.allocate("instance:a", {device(0): Portion(4)}, node_id=NODE, boot_id="first"), Allocated
    )
    assert not await book.apply(view, mend(view.book, [facts_of(0, size=20)], []))
    assert len((await book.read()).book.records[device(0)].claims) == 1
    outcome = await any_store.transact([ModifiedAt(pool_key(device(0)), 1)], [Put("/x", b"")])
    assert isinstance(outcome, Conflict)


@pytest.mark.shows("P9", "P15")
async def test_a_whole_fleet_that_falls_silent_at_once_is_written_down_and_comes_back(any_store: LeaseStore) -> None:
    """etcd takes 128 comparisons in one transaction, as many as operations."""
    guard = await put(any_store, "/leader/controller", b"leader")
    book = a_book(any_store, guards=[CreatedAt("/leader/controller", guard)])
    await settle(book, [facts_of(number) for number in range(150)])
    for standing, status in ((Standing.UNKNOWN, Status.UNKNOWN), (Standing.OK, Status.FREE)):
        view = await settle(book, [facts_of(number, standing=standing) for number in range(150)])
        assert {record.status for record in view.book.records.values()} == {status}


async def test_a_claim_is_on_as_many_devices_as_are_promised(any_store: LeaseStore) -> None:
    guard = await put(any_store, "/leader/controller", b"leader")
    book = a_book(any_store, guards=[CreatedAt("/leader/controller", guard)])
    await settle(book, [facts_of(number) for number in range(MOST_DEVICES)])
    everywhere = {device(number): Portion(1) for number in range(MOST_DEVICES)}
    assert isinstance(await book.allocate("instance:a", everywhere, node_id=NODE, boot_id="first"), Allocated)
    assert await book.release("instance:a")
    assert {record.status for record in (await book.read()).book.records.values()} == {Status.FREE}


@pytest.mark.parametrize(
    "key",
    [
        "/gpu/pools/x", "/gpu/nodes/x/health", "/gpu/claims/x", "/gpu/other", pool_key(device(0)),
        claim_key("instance:a"),
    ],
)  # fmt: skip
async def test_what_others_have_written_there_ends_no_leader_and_gives_nothing_away(
    any_store: LeaseStore, key: str
) -> None:
    book = a_book(any_store)
    await settle(book, [facts_of(0)])
    held = RecordedClaim("instance:b", 7, NODE, "first", {device(0): Portion(6)})
    await settle(book, [facts_of(0)], [held])
    await put(any_store, key, b"\xff{ not ours")
    assert not isinstance(  # before it was mended
        await book.allocate("instance:c", {device(0): Portion(6)}, node_id=NODE, boot_id="first"), Allocated
    )
    view = await settle(book, [facts_of(0)], [held])
    assert [one.holder for one in view.book.records[device(0)].claims] == ["instance:b"]
    claim = await book.allocate("instance:a", {device(0): Portion(4)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)

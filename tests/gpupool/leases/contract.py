"""What every lease store must do. A driver's test file inherits `LeaseStoreContract` and gives the fixture `store`.

Times to live are whole seconds and a store may expire late, as etcd does: tests wait with a deadline
and never assert that something is gone at once.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool.leases.base import (
    Committed,
    Compacted,
    Condition,
    Conflict,
    CreatedAt,
    Delete,
    Event,
    Grant,
    IsAbsent,
    LeaseNotFound,
    LeaseStore,
    ModifiedAt,
    Operation,
    Put,
    StoreUnavailable,
)

T = TypeVar("T")
SHORT_TTL_SECONDS = 1
RENEWED_TTL_SECONDS = 5
"""Of a lease that is renewed all the time: who renews may stand still for less."""
PATIENCE_SECONDS: Final = 30.0
"""The deadline of a store that is there: it, or who asks, may stand still on a busy machine."""
_EXAMPLE: Final = itertools.count()
_STEPS: Final = st.tuples(
    st.sampled_from(["put", "put on lease", "delete", "revoke"]), st.sampled_from("abc"), st.booleans()
)
"""What is done, to which key, and whether its condition holds."""


async def eventually(look: Callable[[], Awaitable[T]], *, seconds: float = 30.0) -> T:
    """Ask until the answer is true."""
    async with asyncio.timeout(seconds):
        while True:
            answer = await look()
            if answer:
                return answer
            await asyncio.sleep(0.02)


async def least_until_refused(
    call: Callable[[], Awaitable[object]], *, lose: Callable[[], Awaitable[None]], enough: float, times: int = 3
) -> float:
    """Seconds until a store says that its server is away: the least of some, for this process may stand still in one.

    `lose` takes the server away from a store that it has just answered: one that was refused before is so at once.
    """
    loop, least = asyncio.get_running_loop(), float("inf")
    while least >= enough and times > 0:
        await lose()
        asked_at, times = loop.time(), times - 1
        with pytest.raises(StoreUnavailable):
            await call()
        least = min(least, loop.time() - asked_at)
    return least


async def take(events: AsyncIterator[Event], count: int, *, seconds: float = 30.0) -> list[Event]:
    """The next `count` events of a watch."""
    taken: list[Event] = []
    async with asyncio.timeout(seconds):
        while len(taken) < count:
            taken.append(await anext(events))
    return taken


async def put(store: LeaseStore, key: str, value: bytes, lease_id: int | None = None) -> int:
    outcome = await store.transact([], [Put(key, value, lease_id)])
    assert isinstance(outcome, Committed)
    return outcome.revision


async def put_for_a_moment(store: LeaseStore, key: str, value: bytes) -> tuple[Grant, int]:
    """The key on a lease that nobody renews, and its revision; a lease that ran out before the key came is no use."""
    async with asyncio.timeout(30):
        while True:
            grant = await store.grant(SHORT_TTL_SECONDS)
            with contextlib.suppress(LeaseNotFound):
                return grant, await put(store, key, value, grant.lease_id)


class LeaseStoreContract:
    async def test_what_was_put_is_read_with_its_revisions(self, store: LeaseStore) -> None:
        assert await store.get("/a") is None
        first = await put(store, "/a", b"1")
        second = await put(store, "/a", b"2")
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.value, entry.create_revision, entry.mod_revision, entry.version) == (b"2", first, second, 2)
        assert second > first

    async def test_a_deleted_and_new_key_has_a_new_create_revision(self, store: LeaseStore) -> None:
        first = await put(store, "/a", b"1")
        await store.transact([], [Delete("/a")])
        assert await store.get("/a") is None
        again = await put(store, "/a", b"1")
        entry = await store.get("/a")
        assert entry is not None
        assert entry.create_revision == again > first
        assert entry.version == 1

    async def test_a_range_is_sorted_and_tells_its_revision(self, store: LeaseStore) -> None:
        for key in ("/n/b", "/n/a", "/n/B", "/other"):
            newest = await put(store, key, b"x")
        snapshot = await store.range("/n/")
        assert [entry.key for entry in snapshot.entries] == ["/n/B", "/n/a", "/n/b"]
        assert snapshot.revision == newest

    async def test_a_range_takes_no_wildcards(self, store: LeaseStore) -> None:
        await put(store, "/a_b", b"x")
        await put(store, "/axb", b"x")
        assert [entry.key for entry in (await store.range("/a_")).entries] == ["/a_b"]

    @pytest.mark.parametrize("key", ["", "no-slash", "/" + "x" * 500, "/nul\x00"])
    async def test_a_key_of_another_shape_is_refused(self, store: LeaseStore, key: str) -> None:
        with pytest.raises(ValueError, match="is no key"):
            await store.transact([], [Put(key, b"x")])

    async def test_one_transaction_is_one_revision_or_nothing(self, store: LeaseStore) -> None:
        revision = await put(store, "/a", b"1")
        refused = await store.transact([ModifiedAt("/a", revision - 1)], [Put("/a", b"2"), Put("/b", b"2")])
        assert isinstance(refused, Conflict)
        assert await store.get("/b") is None
        done = await store.transact([ModifiedAt("/a", revision)], [Put("/a", b"2"), Put("/b", b"2")])
        assert isinstance(done, Committed)
        entries = (await store.range("/")).entries
        assert [(entry.key, entry.mod_revision) for entry in entries] == [("/a", done.revision), ("/b", done.revision)]

    async def test_two_operations_on_one_key_are_refused(self, store: LeaseStore) -> None:
        with pytest.raises(ValueError, match="same key"):
            await store.transact([], [Put("/a", b"1"), Delete("/a")])

    async def test_absent_and_created_at_are_compared(self, store: LeaseStore) -> None:
        created = await put(store, "/a", b"1")
        await put(store, "/a", b"2")
        assert isinstance(await store.transact([IsAbsent("/a")], [Put("/a", b"3")]), Conflict)
        assert isinstance(await store.transact([CreatedAt("/a", created + 1)], [Put("/a", b"3")]), Conflict)
        assert isinstance(await store.transact([CreatedAt("/a", created)], [Put("/a", b"3")]), Committed)
        assert isinstance(await store.transact([IsAbsent("/b")], [Put("/b", b"1")]), Committed)

    async def test_of_many_at_once_exactly_one_creates_a_key(self, store: LeaseStore) -> None:
        outcomes = await asyncio.gather(
            *(store.transact([IsAbsent("/lock")], [Put("/lock", str(n).encode())]) for n in range(20))
        )
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1

    async def test_increments_by_compare_and_set_lose_nothing(self, store: LeaseStore) -> None:
        await put(store, "/n", b"0")

        async def increment() -> None:
            while True:
                entry = await store.get("/n")
                assert entry is not None
                value = str(int(entry.value) + 1).encode()
                if isinstance(
                    await store.transact([ModifiedAt("/n", entry.mod_revision)], [Put("/n", value)]), Committed
                ):
                    return

        await asyncio.gather(*(increment() for _ in range(10)))
        entry = await store.get("/n")
        assert entry is not None
        assert entry.value == b"10"

    @given(script=st.lists(_STEPS, max_size=25))
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    async def test_any_sequence_of_writes_is_what_a_dictionary_would_hold(
        self, store: LeaseStore, script: list[tuple[str, str, bool]]
    ) -> None:
        prefix = f"/any/{next(_EXAMPLE)}/"
        start = (await store.range(prefix)).revision
        model: dict[str, tuple[int, int, int, int | None]] = {}  # create, mod, version, lease
        grant = await store.grant(600)
        told: list[tuple[int, str, bool]] = []
        last = start
        for action, name, fresh in script:
            key = prefix + name
            known = model.get(key)
            if action == "revoke":
                await store.revoke(grant.lease_id)
                gone = sorted(one for one, row in model.items() if row[3] == grant.lease_id)
                told += [(-1, one, False) for one in gone]
                for one in gone:
                    del model[one]
                grant = await store.grant(600)
                continue
            # A condition that holds, or one that does not.
            right: Condition = IsAbsent(key) if known is None else ModifiedAt(key, known[1])
            wrong: Condition = ModifiedAt(key, last + 1000) if known is None else IsAbsent(key)
            lease_id = grant.lease_id if action == "put on lease" else None
            operation: Operation = Delete(key) if action == "delete" else Put(key, b"x", lease_id)
            outcome = await store.transact([right if fresh else wrong], [operation])
            assert isinstance(outcome, Committed) is fresh
            if not fresh:
                continue
            changes = action != "delete" or known is not None
            assert outcome.revision > last if changes else outcome.revision >= last  # what changes nothing may count
            last = outcome.revision
            if action != "delete":
                model[key] = (known[0] if known else last, last, known[2] + 1 if known else 1, lease_id)
                told.append((last, key, True))
            elif known is not None:
                del model[key]
                told.append((last, key, False))
        entries = (await store.range(prefix)).entries
        assert {e.key: (e.create_revision, e.mod_revision, e.version, e.lease_id) for e in entries} == model
        events = await take(store.watch(prefix, after_revision=start), len(told)) if told else []
        assert [(event.key, event.value is not None) for event in events] == [(key, put) for _, key, put in told]
        assert all(event.revision == told[n][0] for n, event in enumerate(events) if told[n][0] >= 0)

    @pytest.mark.shows("R35")
    async def test_a_key_goes_when_its_lease_runs_out(self, store: LeaseStore) -> None:
        await put(store, "/stays", b"1")
        grant, _ = await put_for_a_moment(store, "/a", b"1")

        async def gone() -> bool:
            return await store.get("/a") is None

        await eventually(gone)
        assert await store.get("/stays") is not None
        with pytest.raises(LeaseNotFound):
            await store.keep_alive(grant.lease_id)

    async def test_a_lease_that_is_renewed_outlives_its_time(self, store: LeaseStore) -> None:
        kept, left = await store.grant(RENEWED_TTL_SECONDS), await store.grant(RENEWED_TTL_SECONDS)
        await put(store, "/kept", b"1", kept.lease_id)
        await put(store, "/left", b"1", left.lease_id)

        async def left_is_gone() -> bool:
            await store.keep_alive(kept.lease_id)
            return await store.get("/left") is None

        await eventually(left_is_gone)
        assert await store.get("/kept") is not None

    async def test_revoking_takes_the_keys_along(self, store: LeaseStore) -> None:
        grant = await store.grant(60)
        await put(store, "/a", b"1", grant.lease_id)
        await store.revoke(grant.lease_id)
        await store.revoke(grant.lease_id)
        assert await store.get("/a") is None
        with pytest.raises(LeaseNotFound):
            await put(store, "/b", b"1", grant.lease_id)

    async def test_a_put_without_the_lease_takes_the_key_off_it(self, store: LeaseStore) -> None:
        grant = await store.grant(60)
        await put(store, "/a", b"1", grant.lease_id)
        await put(store, "/a", b"2")
        await store.revoke(grant.lease_id)
        assert await store.get("/a") is not None

    async def test_a_watch_tells_every_change_after_its_revision(self, store: LeaseStore) -> None:
        first = await put(store, "/w/a", b"1")
        second = await put(store, "/w/a", b"2")
        await put(store, "/other", b"x")
        events = store.watch("/w/", after_revision=first)
        assert await take(events, 1) == [Event(second, "/w/a", b"2")]
        third = await put(store, "/w/b", b"3")
        outcome = await store.transact([], [Delete("/w/a")])
        assert await take(events, 2) == [Event(third, "/w/b", b"3"), Event(outcome.revision, "/w/a", None)]

    async def test_a_watch_from_a_range_misses_nothing_under_many_writers(self, store: LeaseStore) -> None:
        snapshot = await store.range("/w/")

        async def write(writer: int) -> None:
            for number in range(10):
                await put(store, f"/w/{writer}", str(number).encode())

        events = store.watch("/w/", after_revision=snapshot.revision)
        writing = asyncio.gather(*(write(writer) for writer in range(5)))
        seen = await take(events, 50)
        await writing
        assert [event.revision for event in seen] == sorted(event.revision for event in seen)
        for writer in range(5):
            values = [event.value for event in seen if event.key == f"/w/{writer}"]
            assert values == [str(number).encode() for number in range(10)]

    async def test_a_watch_hears_of_an_expiry(self, store: LeaseStore) -> None:
        _, revision = await put_for_a_moment(store, "/w/a", b"1")
        events = await take(store.watch("/w/", after_revision=revision), 1)
        assert (events[0].key, events[0].value) == ("/w/a", None)
        assert events[0].revision > revision

    async def test_a_watch_from_before_a_compaction_is_told_to_read_anew(self, store: LeaseStore) -> None:
        first = await put(store, "/w/a", b"1")
        for number in range(3):
            newest = await put(store, "/w/a", str(number).encode())
        await store.compact(newest)
        with pytest.raises(Compacted):
            await take(store.watch("/w/", after_revision=first - 1), 1)
        snapshot = await store.range("/w/")
        events = store.watch("/w/", after_revision=snapshot.revision)
        later = await put(store, "/w/a", b"later")
        assert await take(events, 1) == [Event(later, "/w/a", b"later")]

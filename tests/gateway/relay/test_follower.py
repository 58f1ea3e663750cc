"""Following the database: deltas, reloads, single-flight resolving, and an absent or frozen server."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from uuid import UUID, uuid4

import pytest

from core.clock import ManualClock
from core.errors import SnapshotStale
from gateway.relay.follower import CHANGES_PER_TURN, Follower
from gateway.relay.plan import Endpoint
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    KEYS,
    MODELS,
    SECTIONS,
    ChangedRow,
    EndpointRow,
    KeyRow,
    Loaded,
    LoadedKeys,
    ModelRow,
    Row,
    SourceUnavailable,
    TenantRow,
)
from gateway.relay.snapshot import Snapshot

TENANT = uuid4()


class FakeSource:
    """A database that a test writes; counts what is asked of it."""

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(SECTIONS, 0)
        self.pruned = dict.fromkeys(SECTIONS, 0)
        self.rows: dict[str, dict[UUID, Row]] = {section: {} for section in SECTIONS}
        self.changes: dict[str, list[ChangedRow]] = {section: [] for section in SECTIONS}
        self.asked: list[str] = []
        self.away = False
        self.before_find: Callable[[], None] = lambda: None
        self.after_find: Callable[[], None] = lambda: None
        self.hold = threading.Event()
        self.hold.set()
        self.write(GRANTS, TenantRow(TENANT, "acme", True, ()))

    def write(self, section: str, row: Row) -> None:
        self.rows[section][row.id] = row
        self.bump(section, row.id)

    def delete(self, section: str, object_id: UUID) -> None:
        del self.rows[section][object_id]
        self.bump(section, object_id)

    def bump(self, section: str, object_id: UUID) -> None:
        self.epochs[section] += 1
        self.changes[section].append(ChangedRow(self.epochs[section], object_id))

    def prune(self, section: str) -> None:
        self.pruned[section] = self.epochs[section]
        self.changes[section].clear()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.hold.wait()
        if self.away:
            raise SourceUnavailable("away")

    def read_epochs(self) -> Mapping[str, int]:
        self._ask("epochs")
        return dict(self.epochs)

    def read_changes(self, section: str, *, after: int, limit: int) -> Sequence[ChangedRow] | None:
        self._ask(f"changes {section}")
        if self.pruned[section] > after:
            return None
        return [change for change in self.changes[section] if change.epoch > after][:limit]

    def load_section(self, section: str) -> Loaded:
        self._ask(f"section {section}")
        return Loaded(self.epochs[section], [] if section == KEYS else list(self.rows[section].values()))

    def load_objects(self, section: str, ids: Sequence[UUID]) -> Loaded:
        self._ask(f"objects {section} {len(ids)}")
        return Loaded(self.epochs[section], [self.rows[section][i] for i in ids if i in self.rows[section]])

    def find_keys(self, digests: Sequence[str]) -> LoadedKeys:
        self._ask(f"keys {len(digests)}")
        self.before_find()
        rows = [row for row in self.rows[KEYS].values() if isinstance(row, KeyRow) and row.digest in digests]
        found = LoadedKeys(self.epochs[KEYS], rows)
        self.after_find()
        return found

    def read_mark(self, process_id: UUID) -> int:
        self._ask("mark")
        return 7

    def close(self) -> None:
        self.asked.append("close")

    def interrupt(self) -> None:
        self.asked.append("interrupt")
        self.hold.set()


def a_key(digest: str = "d", key_id: UUID | None = None, *, revoked: bool = False, tenant: UUID = TENANT) -> KeyRow:
    return KeyRow(key_id or uuid4(), digest, tenant, frozenset({"infer"}), (), None, None, revoked)


@contextlib.contextmanager
def watching(source: FakeSource, look: Callable[[], None]) -> Iterator[None]:
    """`look` is called on the loop again and again, while each read is being made too."""
    loop, ask = asyncio.get_running_loop(), source._ask

    def looked(what: str) -> None:
        ask(what)
        seen = threading.Event()
        loop.call_soon_threadsafe(look)
        loop.call_soon_threadsafe(seen.set)
        seen.wait(5)

    source._ask = looked  # type: ignore[method-assign]
    try:
        yield
    finally:
        source._ask = ask  # type: ignore[method-assign]


class House:
    def __init__(self) -> None:
        self.source = FakeSource()
        self.clock = ManualClock()
        self.snapshot = Snapshot()
        self.follower = Follower(self.source, self.snapshot, clock=self.clock, poll_seconds=3600, stale_seconds=60)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.follower.start()
    house.source.asked.clear()
    yield house
    house.source.hold.set()
    await house.follower.stop()


async def test_the_first_load_is_whole(house: House) -> None:
    assert house.snapshot.applied == {**dict.fromkeys(SECTIONS, 0), GRANTS: 1}
    assert house.snapshot.tenant(TENANT) is not None
    house.follower.check_fresh()


async def test_only_what_changed_is_read(house: House) -> None:
    model = ModelRow(uuid4(), "tiny", None, 1)
    house.source.write(MODELS, model)
    house.source.write(MODELS, model)
    await house.follower.poll()
    assert house.source.asked == ["epochs", "changes models", "objects models 1"]
    assert house.snapshot.model("tiny") == model
    house.source.asked.clear()
    await house.follower.poll()
    assert house.source.asked == ["epochs"]


async def test_endpoints_come_and_go(house: House) -> None:
    model_id, instance_id = uuid4(), uuid4()
    endpoint = Endpoint(instance_id, uuid4(), "vllm", "127.0.0.1", 1, "", "tiny")
    house.source.write(ENDPOINTS, EndpointRow(instance_id, model_id, endpoint))
    await house.follower.poll()
    assert house.snapshot.endpoints(model_id) == (endpoint,)
    house.source.delete(ENDPOINTS, instance_id)
    await house.follower.poll()
    assert house.snapshot.endpoints(model_id) == ()


async def test_pruned_changes_mean_a_reload(house: House) -> None:
    house.source.write(MODELS, ModelRow(uuid4(), "tiny", None, 1))
    house.source.prune(MODELS)
    await house.follower.poll()
    assert house.source.asked == ["epochs", "changes models", "section models"]
    assert house.snapshot.model("tiny") is not None


async def test_a_gap_in_the_changes_means_a_reload(house: House) -> None:
    for name in ("a", "b", "c"):
        house.source.write(MODELS, ModelRow(uuid4(), name, None, 1))
    del house.source.changes[MODELS][1]
    await house.follower.poll()
    assert "section models" in house.source.asked
    assert house.snapshot.model("b") is not None


async def test_a_database_that_was_set_back_means_a_reload(house: House) -> None:
    house.source.write(MODELS, ModelRow(uuid4(), "tiny", None, 1))
    await house.follower.poll()
    house.source.rows[MODELS].clear()
    house.source.epochs[MODELS] = 0
    await house.follower.poll()
    assert house.snapshot.model("tiny") is None


async def test_many_changes_are_applied_some_at_a_time(house: House) -> None:
    for number in range(2 * CHANGES_PER_TURN + 10):
        house.source.write(MODELS, ModelRow(uuid4(), f"m{number}", None, 1))
    await house.follower.poll()
    assert house.source.asked.count(f"objects models {CHANGES_PER_TURN}") == 2
    assert len(list(house.snapshot.models())) == 2 * CHANGES_PER_TURN + 10


async def test_everyone_who_asks_for_a_key_shares_one_read(house: House) -> None:
    house.source.write(KEYS, a_key("d"))
    await house.follower.poll()
    house.source.asked.clear()
    await asyncio.gather(*(house.follower.resolve("d") for _ in range(50)))
    await house.follower.resolve("d")
    assert house.source.asked == ["keys 1"]
    assert house.snapshot.key("d") is not None


async def test_keys_that_wait_are_read_together(house: House) -> None:
    house.source.hold.clear()
    first = asyncio.create_task(house.follower.resolve("first"))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(house.follower.resolve(f"d{n}")) for n in range(100)]
    await asyncio.sleep(0)
    house.source.hold.set()
    await asyncio.gather(first, *rest)
    assert house.source.asked in (["keys 1", "keys 100"], ["keys 101"])


async def test_an_unknown_key_is_remembered_until_keys_change(house: House) -> None:
    await house.follower.resolve("d")
    await house.follower.resolve("d")
    assert house.source.asked == ["keys 1"]
    assert house.snapshot.key("d") is None
    house.source.write(KEYS, a_key("d"))
    await house.follower.poll()
    await house.follower.resolve("d")
    assert house.snapshot.key("d") is not None


async def test_a_revocation_reaches_a_cached_key_and_reads_no_other(house: House) -> None:
    key = a_key("d")
    house.source.write(KEYS, key)
    await house.follower.resolve("d")
    house.source.write(KEYS, a_key("d", key.id, revoked=True))
    house.source.write(KEYS, a_key("another"))
    house.source.asked.clear()
    await house.follower.poll()
    assert house.source.asked == ["epochs", "changes keys", "objects keys 1"]
    found = house.snapshot.key("d")
    assert found is not None
    assert found.revoked


async def test_a_read_from_before_an_applied_revocation_is_read_again(house: House) -> None:
    key = a_key("d")
    house.source.write(KEYS, key)
    await house.follower.poll()
    revoked = a_key("d", key.id, revoked=True)

    def revoke_meanwhile() -> None:
        """After the read, before its answer is used: the revocation is written and applied."""
        house.source.after_find = lambda: None
        house.source.write(KEYS, revoked)
        loop.call_soon_threadsafe(house.snapshot.apply, KEYS, [key.id], [])
        loop.call_soon_threadsafe(house.snapshot.applied.__setitem__, KEYS, house.source.epochs[KEYS])

    loop = asyncio.get_running_loop()
    house.source.after_find = revoke_meanwhile
    await house.follower.resolve("d")
    assert house.snapshot.key("d") == revoked


async def test_a_reload_of_the_keys_reads_those_that_are_held_and_serves_them_meanwhile(house: House) -> None:
    kept, revoked, gone = a_key("kept"), a_key("revoked"), a_key("gone")
    for key in (kept, revoked, gone):
        house.source.write(KEYS, key)
    await house.follower.poll()
    await asyncio.gather(*(house.follower.resolve(name) for name in ("kept", "revoked", "gone", "none")))
    house.source.write(KEYS, a_key("revoked", revoked.id, revoked=True))
    house.source.delete(KEYS, gone.id)
    house.source.prune(KEYS)
    seen: list[bool] = []
    with watching(house.source, lambda: seen.append(house.snapshot.key("kept") == kept)):
        await house.follower.poll()
    assert "section keys" in house.source.asked
    assert "objects keys 3" in house.source.asked
    assert seen
    assert all(seen)
    assert house.snapshot.key("kept") == kept
    found = house.snapshot.key("revoked")
    assert found is not None
    assert found.revoked
    assert not house.snapshot.knows("gone")
    assert house.snapshot.applied[KEYS] == house.source.epochs[KEYS]


async def test_a_key_that_is_resolved_during_a_reload_is_known_after_it(house: House) -> None:
    house.source.write(KEYS, a_key("before"))
    house.source.write(KEYS, a_key("during"))
    await house.follower.poll()
    await house.follower.resolve("before")
    house.source.write(KEYS, a_key("other"))
    house.source.prune(KEYS)
    ways: list[asyncio.Task[bool]] = []

    async def ask() -> bool:
        await house.follower.resolve("during")
        return house.snapshot.key("during") is not None

    def once() -> None:
        if not ways:
            ways.append(asyncio.get_running_loop().create_task(ask()))

    with watching(house.source, once):
        await house.follower.poll()
    assert await ways[0]
    assert house.snapshot.key("during") is not None
    assert house.snapshot.key("before") is not None


async def test_a_change_made_while_keys_are_read_anew_is_applied_with_them(house: House) -> None:
    key = a_key("d")
    house.source.write(KEYS, key)
    await house.follower.resolve("d")
    house.source.write(KEYS, a_key("other"))
    house.source.prune(KEYS)
    load = house.source.load_objects

    def revoke_after(section: str, ids: Sequence[UUID]) -> Loaded:
        loaded = load(section, ids)
        if section == KEYS and not house.source.changes[KEYS]:
            house.source.write(KEYS, a_key("d", key.id, revoked=True))
        return loaded

    house.source.load_objects = revoke_after  # type: ignore[method-assign]
    await house.follower.poll()
    found = house.snapshot.key("d")
    assert found is not None
    assert found.revoked


async def test_a_reload_that_breaks_off_leaves_the_keys_as_they_were(house: House) -> None:
    key = a_key("d")
    house.source.write(KEYS, key)
    await house.follower.poll()
    await house.follower.resolve("d")
    house.source.write(KEYS, a_key("other"))
    house.source.prune(KEYS)

    def away(section: str, ids: Sequence[UUID]) -> Loaded:
        raise SourceUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(house.source, "load_objects", away)
        with pytest.raises(SourceUnavailable):
            await house.follower.poll()
    assert house.snapshot.key("d") == key
    await house.follower.poll()
    assert house.snapshot.key("d") == key
    assert house.snapshot.applied[KEYS] == house.source.epochs[KEYS]


async def test_keys_are_resolved_after_the_database_was_set_back(house: House) -> None:
    held = a_key("held")
    house.source.write(KEYS, held)
    house.source.write(KEYS, a_key("newer"))
    await house.follower.poll()
    await house.follower.resolve("held")
    house.source.epochs[KEYS] = 1
    house.source.prune(KEYS)
    async with asyncio.timeout(5):
        await house.follower.resolve("newer")
    assert house.snapshot.key("newer") is not None
    assert house.snapshot.key("held") == held
    assert house.snapshot.applied[KEYS] == 1


async def test_one_that_leaves_takes_nobodys_key_away(house: House) -> None:
    house.source.write(KEYS, a_key("d"))
    await house.follower.poll()
    house.source.hold.clear()
    first, second = (asyncio.create_task(house.follower.resolve("d")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    house.source.hold.set()
    await second
    assert first.cancelled()
    assert house.snapshot.key("d") is not None


async def test_a_key_of_a_tenant_made_just_now_finds_its_tenant(house: House) -> None:
    tenant = TenantRow(uuid4(), "new", True, ())
    house.source.write(GRANTS, tenant)
    house.source.write(KEYS, a_key("d", tenant=tenant.id))
    await house.follower.resolve("d")
    assert house.snapshot.tenant(tenant.id) == tenant


async def test_a_key_cannot_be_resolved_while_the_database_is_away(house: House) -> None:
    house.source.away = True
    with pytest.raises(SnapshotStale):
        await house.follower.resolve("d")
    house.source.away = False
    await house.follower.resolve("d")


async def test_an_absent_database_is_noticed_after_a_second_and_served_for_a_minute(house: House) -> None:
    house.source.away = True
    seen = []
    for seconds in (0.9, 0.2):
        house.clock.advance(seconds)
        seen.append(house.follower.away)
    assert seen == [False, True]
    with contextlib.suppress(SourceUnavailable):
        await house.follower.poll()
    house.clock.advance(58)
    house.follower.check_fresh()
    house.clock.advance(2)
    with pytest.raises(SnapshotStale):
        house.follower.check_fresh()
    assert house.follower.unready_reason() is not None
    house.source.away = False
    await house.follower.poll()
    house.follower.check_fresh()
    assert not house.follower.away


async def test_a_frozen_database_is_interrupted(house: House) -> None:
    house.source.hold.clear()
    with pytest.raises(SourceUnavailable):
        await house.follower.poll()
    assert "interrupt" in house.source.asked


async def test_a_hint_hastens_the_poll(house: House) -> None:
    house.source.write(MODELS, ModelRow(uuid4(), "tiny", None, 1))
    house.follower.hasten("pool", 5)  # not followed
    house.follower.hasten(MODELS, 1)
    async with asyncio.timeout(5):
        while house.snapshot.model("tiny") is None:  # noqa: ASYNC110  # the follower tells nobody
            await asyncio.sleep(0)


async def test_a_mark_is_asked_of_the_ledger(house: House) -> None:
    assert await house.follower.read_mark(uuid4()) == 7


async def test_nobody_waits_for_a_read_that_died_of_something_else(house: House) -> None:
    def odd() -> None:
        raise ValueError("a row that nobody thought of")

    house.source.before_find = odd
    async with asyncio.timeout(5):
        for _ in range(2):
            with pytest.raises(SnapshotStale):
                await house.follower.resolve("digest")
        house.source.before_find = lambda: None
        await house.follower.resolve("digest")
    assert house.snapshot.knows("digest")


async def test_following_goes_on_after_a_read_that_died_of_something_else(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    def odd(section: str, ids: Sequence[UUID]) -> Loaded:
        died_soon(died.set)
        raise ValueError("a row that nobody thought of")

    died_soon = asyncio.get_running_loop().call_soon_threadsafe
    with monkeypatch.context() as patch:
        patch.setattr(house.source, "load_objects", odd)
        house.source.write(MODELS, ModelRow(uuid4(), "tiny", None, 1))
        house.follower.hasten(MODELS, 1)
        async with asyncio.timeout(5):
            await died.wait()
    async with asyncio.timeout(5):
        while house.snapshot.model("tiny") is None:  # the follower tells nobody
            house.follower.hasten(MODELS, 2)
            await asyncio.sleep(0.01)

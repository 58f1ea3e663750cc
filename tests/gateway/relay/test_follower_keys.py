"""Keys, which are read when they are first asked for: single-flight resolving, revocations, reloads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID, uuid4

import pytest

from core.errors import SnapshotStale
from gateway.relay.rows import (
    GRANTS,
    KEYS,
    Loaded,
    SourceUnavailable,
    TenantRow,
)
from tests.gateway.relay.following import House, a_house, a_key, watching


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with a_house() as house:
        yield house


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

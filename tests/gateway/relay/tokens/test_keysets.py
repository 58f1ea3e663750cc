"""Keys of issuers: fetched ahead and off the loop, kept while their address is away, never asked for too often."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from core.clock import ManualClock
from gateway.relay.rows import IssuerRow
from gateway.relay.tokens import keysets as keysets_module
from gateway.relay.tokens.keysets import FEWEST_SECONDS, KEPT_SECONDS, REFRESH_SECONDS, KeySets, KeysUnavailable
from tenants.policies.token_keys import KeySet
from tests.doubles.issuer import TokenMaker
from tests.gateway.relay.tokens.issuers import Address, issuer_row

URL = "https://issuer.example/keys"


class Bench:
    """Key sets of one issuer, and the address they come from."""

    def __init__(self, row: IssuerRow | None = None) -> None:
        self.maker = TokenMaker()
        self.address = Address(self.maker.key_set)
        self.clock = ManualClock()
        self.row = row or issuer_row(jwks_url=URL)
        self.rows: Sequence[IssuerRow] = [self.row]
        self.sets = KeySets(self.address, lambda: self.rows, clock=self.clock)

    async def look(self) -> None:
        """One round, with all that it begins."""
        self.sets.look()
        await self.settle()

    async def settle(self) -> None:
        tasks = [*self.sets._tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=10)
        await asyncio.sleep(0)

    @property
    def keys(self) -> KeySet:
        keys = self.sets.get(self.row)
        assert keys is not None
        return keys


@contextlib.asynccontextmanager
async def bench(row: IssuerRow | None = None) -> AsyncIterator[Bench]:
    made = Bench(row)
    try:
        yield made
    finally:
        made.address.go.set()
        await made.sets.aclose()


async def test_keys_are_fetched_before_anyone_asks_and_again_when_they_are_old() -> None:
    async with bench() as made:
        await made.look()
        first = made.keys
        assert first.has("key-0")
        await made.look()
        assert made.address.asked == 1
        made.clock.advance(REFRESH_SECONDS)
        await made.look()
        assert made.address.asked == 2
        assert made.keys is first  # nothing changed: what was verified with it holds
        made.maker.rotate()
        made.clock.advance(REFRESH_SECONDS)
        await made.look()
        assert made.keys.has("key-1")
        made.maker.rotate(keep=False)
        made.clock.advance(REFRESH_SECONDS)
        await made.look()
        assert not made.keys.has("key-0")


async def test_keys_outlive_their_address_for_a_day_and_no_longer() -> None:
    async with bench() as made:
        await made.look()
        made.address.away = True
        for _ in range(int(KEPT_SECONDS / REFRESH_SECONDS)):
            made.clock.advance(REFRESH_SECONDS)
            await made.look()
        assert made.keys.has("key-0")
        made.clock.advance(1)
        await made.look()
        assert made.sets.get(made.row) is None
        made.address.away = False
        made.clock.advance(FEWEST_SECONDS)
        await made.look()
        assert made.keys.has("key-0")


@pytest.mark.parametrize("body", ["", "<html>", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AA"}]}', "[" * 9])
async def test_a_bad_answer_changes_nothing_and_does_not_count_as_fresh(body: str) -> None:
    async with bench() as made:
        await made.look()
        before = made.keys
        made.address.body = lambda: body
        for _ in range(3):
            made.clock.advance(REFRESH_SECONDS)
            await made.look()
        assert made.keys is before
        made.clock.advance(KEPT_SECONDS)
        await made.look()
        assert made.sets.get(made.row) is None


async def test_keys_on_their_way_from_an_address_that_may_no_longer_be_private_are_dropped() -> None:
    async with bench(msgspec.structs.replace(issuer_row(jwks_url=URL), allow_private=True)) as made:
        made.address.go.clear()
        made.sets.look()
        now_public = msgspec.structs.replace(made.row, allow_private=False)
        made.rows = [now_public]
        assert made.sets.get(now_public) is None
        made.address.go.set()
        await made.settle()
        assert made.sets.get(now_public) is None


async def test_another_status_than_200_is_no_key_set() -> None:
    async with bench() as made:
        made.address.status = 302
        await made.look()
        assert made.sets.get(made.row) is None


async def test_a_first_token_waits_for_the_keys_once_with_all_others() -> None:
    async with bench() as made:
        made.address.go.clear()
        waiting = [asyncio.ensure_future(made.sets.first(made.row)) for _ in range(5)]
        await asyncio.sleep(0)
        made.address.go.set()
        assert {id(keys) for keys in await asyncio.gather(*waiting)} == {id(made.keys)}
        assert made.address.asked == 1


async def test_an_address_that_is_silent_or_away_is_a_503_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keysets_module, "FIRST_WAIT_SECONDS", 0.05)
    async with bench() as made:
        made.address.go.clear()
        with pytest.raises(KeysUnavailable) as refused:
            await made.sets.first(made.row)
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 5.0)
        made.address.go.set()
        await made.settle()
        assert (await made.sets.first(made.row)).has("key-0")  # it came after all
    async with bench() as made:
        made.address.away = True
        for _ in range(5):
            with pytest.raises(KeysUnavailable):
                await made.sets.first(made.row)
        assert made.address.asked == 1  # and is not asked for each token


async def test_unknown_keys_have_them_fetched_at_most_each_ten_seconds() -> None:
    async with bench() as made:
        await made.look()
        for _ in range(100):
            made.sets.refresh_soon(made.row)
            await made.settle()
        assert made.address.asked == 1
        made.clock.advance(FEWEST_SECONDS)
        await made.look()  # what was asked for too early is done when its time has come
        assert made.address.asked == 2
        made.clock.advance(FEWEST_SECONDS)
        await made.look()
        assert made.address.asked == 2  # and once
        for _ in range(100):
            made.sets.refresh_soon(made.row)
            await made.settle()
        assert made.address.asked == 3


async def test_pinned_keys_need_no_address_and_count_before_fetched_ones() -> None:
    pinned = TokenMaker(number=5)
    async with bench(issuer_row(pinned)) as made:
        await made.look()
        assert made.keys.has("key-5")
        made.sets.refresh_soon(made.row)
        assert made.address.asked == 0
    both = issuer_row(pinned, jwks_url=URL)
    async with bench(both) as made:
        made.address.body = lambda: pinned.key_set().replace('"keys": [', f'"keys": [{made.maker.key_set()[10:-2]}, ')
        await made.look()
        assert len(made.keys.keys) == 2
        assert made.keys.find("key-5", "RS256") is not None
        assert made.keys.find("key-0", "RS256") is not None


async def test_a_changed_issuer_keeps_its_keys_as_long_as_its_address() -> None:
    async with bench() as made:
        await made.look()
        other = issuer_row(row_id=made.row.id, jwks_url=URL, leeway_seconds=5.0)
        assert made.sets.get(other) is not None
        moved = issuer_row(row_id=made.row.id, jwks_url=f"{URL}/2")
        assert made.sets.get(moved) is None
        made.rows = []
        await made.look()
        assert made.sets._held == {}

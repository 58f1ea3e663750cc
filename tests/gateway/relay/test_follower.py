"""Following the database: deltas, reloads, and an absent or frozen server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from uuid import UUID, uuid4

import pytest

from core.errors import SnapshotStale
from gateway.relay.follower import CHANGES_PER_TURN
from gateway.relay.plan import Endpoint
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    MODELS,
    SECTIONS,
    EndpointRow,
    Loaded,
    ModelRow,
    SourceUnavailable,
)
from tests.gateway.relay.following import TENANT, House, a_house


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with a_house() as house:
        yield house


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

"""Who leads with a thread that hangs: it makes room, and does not come back before the thread does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from core.ending import end_tasks
from dashboard.live import leader
from dashboard.live.base import Feed
from dashboard.live.board import LocalBoard
from dashboard.live.leader import Leader
from dashboard.live.topics import Topic
from gpupool.leases.base import StoreUnavailable
from tests.dashboard.live.sockets import DEADLINE

pytestmark = pytest.mark.django_db(transaction=True)


class HangingBoard(LocalBoard):
    """Answers nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__({}, lambda *_: None)
        self.asked, self.free = threading.Event(), threading.Event()

    def watched(self) -> Collection[Topic]:
        self.asked.set()
        assert self.free.wait(DEADLINE)
        return []


@pytest.fixture
async def board() -> AsyncIterator[HangingBoard]:
    made = HangingBoard()
    yield made
    made.free.set()


def no_feed(_: str) -> Feed | None:
    return None


class AwayStore:
    """What a campaign asks first."""

    async def get(self, _: str) -> None:
        raise StoreUnavailable("away")


async def test_leadership_is_given_up_when_the_thread_hangs(
    board: HangingBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "_STUCK_SECONDS", 0.05)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(TimeoutError, match="hangs"):
            await Leader(board, no_feed, store=None)._publish(1)
    assert not board.free.is_set()  # what hangs was not waited for


class BusyPublisher:
    """Something got done between any two looks at it, and all of it at the sixth."""

    def __init__(self) -> None:
        self._looks = 0
        self._done = threading.Event()

    @property
    def steps(self) -> int:
        self._looks += 1
        if self._looks == 6:
            self._done.set()
        return self._looks

    def round(self) -> float:
        assert self._done.wait(DEADLINE)
        return 0.5


async def test_a_round_that_is_long_because_there_is_much_to_do_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_STUCK_SECONDS", 0.01)
    busy: Any = BusyPublisher()
    assert await leader._round(busy) == 0.5


async def test_nobody_campaigns_whose_thread_hangs(board: HangingBoard) -> None:
    campaigns = asyncio.Event()

    def store() -> Any:
        campaigns.set()
        return AwayStore()

    hanging = leader._thread.submit(board.watched)
    assert await asyncio.to_thread(board.asked.wait, DEADLINE)
    running = asyncio.create_task(Leader(board, no_feed, store=store).run())
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not campaigns.is_set()
        board.free.set()
        await asyncio.wait_for(campaigns.wait(), DEADLINE)
    finally:
        await end_tasks(running)
    assert hanging.done()

"""Hubs of several web processes around one Valkey: one of them reads, all show the same, and trouble passes."""

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import kill
from pathlib import Path

import pytest
import redis
from django.conf import settings

from core.clock import SystemClock
from core.embedded.valkey import ValkeyServer
from dashboard.live import follower, leader, publisher
from dashboard.live.base import Payload, Viewer
from dashboard.live.connections import Connection
from dashboard.live.hub import Hub
from dashboard.live.ring import Frame
from dashboard.live.topics import Topic
from gpupool.leases.base import StoreUnavailable
from gpupool.leases.default import close_shared_store, shared_store
from tests.dashboard.live.feeds import CountFeed, steady
from tests.dashboard.live.sockets import DEADLINE

pytestmark = pytest.mark.django_db(transaction=True)

BOARD_AWAY = '{"n":1,"op":"trouble","code":"board"}'
OPERATOR = Viewer(user_id=1, platform_role="operator")
_prefixes = (f"{settings.GATEHOUSE.valkey_prefix}hub-{number}:" for number in itertools.count())


@dataclass
class Page:
    """A client of a hub that checks what it is sent."""

    hub: Hub
    connection: Connection = field(default_factory=lambda: Connection("session", OPERATOR))
    shown: int = 0
    number: int = 1
    keyframes: int = 0
    troubles: list[str] = field(default_factory=list)

    def watch(self, scope: str = "") -> "Page":
        self.hub.join(self.connection)
        assert not isinstance(self.hub.subscribe(self.connection, self.number, Topic("count", scope)), str)
        return self

    async def next(self) -> Payload:
        async with asyncio.timeout(DEADLINE):
            while (payload := self.connection.next()) is None:
                await self.connection.wake.wait()
                self.connection.wake.clear()
        return payload

    async def frame(self) -> int:
        """The next frame's number, and that a delta never comes without what is before it."""
        while isinstance(payload := await self.next(), str):
            self.troubles.append(payload)
        assert payload[0] == self.number
        kind, number = payload[1:2], int(payload[2:])
        if kind == b"K":
            self.keyframes += 1
        else:
            assert number == self.shown + 1
        assert number > self.shown
        self.shown = number
        return number

    async def until(self, condition: Callable[[int], bool]) -> int:
        async with asyncio.timeout(DEADLINE):
            while not condition(number := await self.frame()):
                pass
        return number

    async def trouble(self) -> str:
        """The next trouble, past frames that are still coming."""
        async with asyncio.timeout(DEADLINE):
            while isinstance(payload := await self.next(), bytes):
                self.shown = int(payload[2:])
        return payload

    def leave(self) -> None:
        self.hub.leave(self.connection)


class Hubs:
    """Makes hubs, each as in a process of its own, and lets go of them."""

    def __init__(self, feed: CountFeed, url: str | None) -> None:
        self.feed = feed
        self._url = url
        self._prefix = next(_prefixes)
        self._made: list[Hub] = []

    def hub(self) -> Hub:
        made = Hub(url=self._url, prefix=self._prefix, feeds={"count": self.feed}.get, recheck_seconds=60)
        self._made.append(made)
        return made

    async def aclose(self) -> None:
        for hub in self._made:
            await hub.close()
        await close_shared_store()


@pytest.fixture
def feed() -> CountFeed:
    return CountFeed()


@pytest.fixture
async def hubs(feed: CountFeed, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hubs]:
    monkeypatch.setattr(publisher, "LOOK_SECONDS", 0.02)
    made = Hubs(feed, settings.GATEHOUSE.valkey_scratch_url)
    yield made
    await made.aclose()


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    steady(monkeypatch)


async def test_viewers_of_all_processes_see_what_one_of_them_reads(hubs: Hubs) -> None:
    pages = [Page(hub).watch() for hub in (hubs.hub(), hubs.hub()) for _ in range(3)]
    for page in pages:
        await page.until(lambda number: number >= 10)  # one reader: nobody skips a number


@pytest.mark.usefixtures("_steady")
async def test_a_late_viewer_is_at_the_newest_state_at_once(hubs: Hubs, feed: CountFeed) -> None:
    first = Page(hubs.hub()).watch()
    await first.until(lambda number: number >= 5)
    late = Page(hubs.hub()).watch()
    await late.until(lambda number: number >= 6)
    assert late.keyframes == 1


@pytest.mark.usefixtures("_steady")
async def test_two_hundred_viewers_get_every_frame_of_one_reader(hubs: Hubs, feed: CountFeed) -> None:
    """A second one would read numbers that nobody is told."""
    feed.period_seconds = 0.05
    hub = hubs.hub()
    pages = [Page(hub).watch() for _ in range(200)]

    async def follow(page: Page) -> None:
        start = await page.frame()
        for number in range(start + 1, start + 11):
            assert await page.frame() == number

    await asyncio.gather(*(follow(page) for page in pages))


@pytest.mark.usefixtures("_steady")
async def test_a_slow_viewer_costs_no_memory_and_is_brought_up_to_date(hubs: Hubs, feed: CountFeed) -> None:
    feed.period_seconds = 0.01
    hub = hubs.hub()
    quick, slow = Page(hub).watch(), Page(hub).watch()
    await slow.frame()
    await quick.until(lambda number: number >= 30)
    assert not slow.connection._answers
    behind = slow.connection.next()
    assert isinstance(behind, bytes)
    slow.shown = int(behind[2:])
    await slow.until(lambda number: number >= quick.shown)


async def test_nobody_reads_once_nobody_watches(hubs: Hubs, feed: CountFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "WATCH_SECONDS", 1)
    hub = hubs.hub()
    page = Page(hub).watch()
    await page.frame()
    page.leave()
    async with asyncio.timeout(DEADLINE):
        before = -1
        while feed.reads != before:
            before = feed.reads
            await asyncio.sleep(0.3)
    again = Page(hub).watch()
    await again.until(lambda number: number > before)


async def test_another_process_goes_on_when_the_leader_ends(hubs: Hubs) -> None:
    leading, following = hubs.hub(), hubs.hub()
    await Page(leading).watch().until(lambda number: number >= 3)
    page = Page(following).watch()
    seen = await page.frame()
    await leading.close()
    await page.until(lambda number: number > seen + 10)


async def test_a_leader_that_cannot_renew_stops_before_another_starts(
    hubs: Hubs, feed: CountFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "TTL_SECONDS", 1.0)
    hub = hubs.hub()
    page = Page(hub).watch()
    await page.until(lambda number: number >= 3)

    async def refuse(*_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        for name in ("keep_alive", "get", "transact"):
            patch.setattr(shared_store(), name, refuse)
        async with asyncio.timeout(DEADLINE):
            before = -1
            while feed.reads != before:  # viewers keep what they have, and their pages say that it is old
                before = feed.reads
                await asyncio.sleep(0.3)
    await page.until(lambda number: number > before)


@pytest.mark.usefixtures("_steady")
async def test_a_gap_is_filled_from_what_the_leader_keeps(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_JITTER_SECONDS", 0.05)
    hub = hubs.hub()
    page = Page(hub).watch()
    await page.until(lambda number: number >= 3)
    take, lost = hub.take, iter([True] * 4)

    def lossy(topic: Topic, frame: Frame) -> None:
        if not next(lost, False):
            take(topic, frame)

    assert hub._follower is not None
    monkeypatch.setattr(hub._follower, "_take", lossy)
    await page.until(lambda number: number >= page.keyframes + 20)
    assert page.keyframes == 1  # the ring had what was lost


async def test_a_later_term_is_news_to_viewers_though_the_clock_went_back(
    feed: CountFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "_RETRY_SECONDS", 0.05)
    async with contextlib.aclosing(Hubs(feed, None)) as alone:
        page = Page(alone.hub()).watch()
        await page.until(lambda number: number >= 3)
        run, failed = publisher.Publisher.round, iter([True])

        def fail_once(self: publisher.Publisher) -> float:
            if next(failed, False):
                monkeypatch.setattr(SystemClock, "now", lambda _: datetime(2001, 1, 1, tzinfo=UTC))
                raise KeyError("a mistake of ours")
            return run(self)

        monkeypatch.setattr(publisher.Publisher, "round", fail_once)
        await page.until(lambda _: page.keyframes == 2)


async def test_a_superseded_leader_waits_before_it_leads_again(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []
    loop, again = asyncio.get_running_loop(), asyncio.Event()

    def superseded(self: publisher.Publisher) -> float:
        rounds.append(time.monotonic())
        if len(rounds) == 2:
            loop.call_soon_threadsafe(again.set)
        self.stop()
        return 0.0

    monkeypatch.setattr(publisher.Publisher, "round", superseded)
    monkeypatch.setattr(leader, "_RETRY_SECONDS", 0.5)
    Page(hubs.hub()).watch()
    async with asyncio.timeout(DEADLINE):
        await again.wait()
    assert rounds[1] - rounds[0] >= 0.5


async def test_without_valkey_a_process_publishes_to_itself(feed: CountFeed) -> None:
    async with contextlib.aclosing(Hubs(feed, None)) as alone:
        hub = alone.hub()
        for page in (Page(hub).watch(), Page(hub).watch()):
            await page.until(lambda number: number >= 5)


async def test_without_valkey_a_sole_viewer_who_asks_for_a_keyframe_gets_one(feed: CountFeed) -> None:
    async with contextlib.aclosing(Hubs(feed, None)) as alone:
        page = Page(alone.hub()).watch()
        await page.until(lambda number: number >= 3)
        page.hub.unsubscribe(page.connection, page.number)
        page.watch()  # before the leader looks at what is watched
        assert await page.frame() < 1000  # and not the next half minute's
        assert page.keyframes == 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    valkey = ValkeyServer(tmp_path / "valkey", log=tmp_path / "valkey.log", durable=False)
    tmp_path.chmod(0o755)
    valkey.start()
    yield valkey
    valkey.stop()


@pytest.fixture
async def mortal(
    feed: CountFeed, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Hubs, ValkeyServer]]:
    monkeypatch.setattr(follower, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(follower, "WATCH_SECONDS", 3)
    made = Hubs(feed, server.url)
    yield made, server
    await made.aclose()


async def test_a_valkey_that_was_emptied_is_filled_again(mortal: tuple[Hubs, ValkeyServer]) -> None:
    hubs, server = mortal
    page = Page(hubs.hub()).watch()
    await page.until(lambda number: number >= 3)
    with contextlib.closing(redis.Redis.from_url(server.url)) as client:
        client.flushall()
    await page.until(lambda number: number > page.keyframes + 10)
    late = Page(hubs.hub()).watch()
    await late.frame()


async def test_a_valkey_that_restarts_is_followed_again_and_pages_are_told(
    mortal: tuple[Hubs, ValkeyServer],
) -> None:
    hubs, server = mortal
    page = Page(hubs.hub()).watch()
    await page.until(lambda number: number >= 3)
    await asyncio.to_thread(server.stop)
    assert await page.trouble() == BOARD_AWAY
    before = page.shown
    await asyncio.to_thread(server.start, port=server.port)
    await page.until(lambda number: number > before + 3)


async def test_a_valkey_that_hangs_is_noticed(mortal: tuple[Hubs, ValkeyServer]) -> None:
    hubs, server = mortal
    page = Page(hubs.hub()).watch()
    await page.until(lambda number: number >= 3)
    assert server.pid is not None
    kill(server.pid, signal.SIGSTOP)
    try:
        assert await page.trouble() == BOARD_AWAY
    finally:
        kill(server.pid, signal.SIGCONT)
    await page.until(lambda number: number > page.keyframes + 5)

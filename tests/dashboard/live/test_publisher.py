"""The publisher: what is watched is read when it is due, and nothing else; trouble is told and outlived."""

import threading
from collections.abc import Callable, Collection

import pytest
from django.db import OperationalError, connection

from core.clock import ManualClock
from dashboard.live.base import Feed, Gone
from dashboard.live.board import BoardUnavailable, Published
from dashboard.live.publisher import Publisher
from dashboard.live.ring import Frame
from dashboard.live.topics import Topic
from tests.dashboard.live.feeds import CountFeed

pytestmark = pytest.mark.django_db(transaction=True)
TOPIC = Topic("count", "")


class FakeBoard:
    """Keeps what is published."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = set(topics)
        self.frames: list[Frame] = []
        self.outcome = Published.PUBLISHED
        self.away = False

    def watched(self) -> Collection[Topic]:
        if self.away:
            raise BoardUnavailable("away")
        return self.topics

    def publish(self, topic: Topic, frame: Frame, *, kept_seconds: float) -> Published:
        if self.away:
            raise BoardUnavailable("away")
        outcome, self.outcome = self.outcome, Published.PUBLISHED
        if outcome is Published.PUBLISHED:
            self.frames.append(frame)
        return outcome

    def close(self) -> None:
        pass

    @property
    def shown(self) -> list[tuple[int, int, bytes | str]]:
        first = self.frames[0].epoch if self.frames else 0
        return [(frame.epoch - first, frame.seq, frame.payload) for frame in self.frames]


def publisher_of(board: FakeBoard, *feeds: Feed, clock: ManualClock | None = None, fence: int = 7) -> Publisher:
    return Publisher(board, {feed.name: feed for feed in feeds}.get, fence=fence, clock=clock or ManualClock())


def test_only_what_is_watched_is_read() -> None:
    board, feed = FakeBoard(), CountFeed(period_seconds=1)
    publisher = publisher_of(board, feed)
    publisher.round()
    assert feed.reads == 0
    board.topics = {TOPIC, Topic("unknown", "")}
    publisher.round()
    assert board.shown == [(0, 1, b"K1")]
    assert board.frames[0].fence == 7
    board.topics = set()
    publisher.round()
    board.topics = {TOPIC}
    publisher.round()
    assert board.frames[1].key  # nobody remembers what viewers had
    assert board.frames[1].epoch > board.frames[0].epoch


def test_a_feed_is_read_once_a_period_and_keyframes_come_each_half_minute() -> None:
    board, feed, clock = FakeBoard(TOPIC), CountFeed(period_seconds=1), ManualClock()
    publisher = publisher_of(board, feed, clock=clock)
    for _ in range(4 * 62):
        clock.advance(publisher.round() or 0.25)
        if clock.monotonic() >= 62:
            break
    assert feed.reads == 62
    assert [frame.seq for frame in board.frames if frame.key] == [1, 31, 61]
    assert {frame.epoch for frame in board.frames} == {board.frames[0].epoch}
    assert [frame.seq for frame in board.frames] == list(range(1, 63))


def test_what_no_delta_can_say_is_a_keyframe_of_the_next_epoch() -> None:
    board, clock = FakeBoard(TOPIC), ManualClock()
    publisher = publisher_of(board, CountFeed(period_seconds=1, lost=lambda n: n == 3), clock=clock)
    for _ in range(4):
        publisher.round()
        clock.advance(1)
    assert board.shown == [(0, 1, b"K1"), (0, 2, b"D2"), (1, 1, b"K3"), (1, 2, b"D4")]


def test_a_board_that_was_emptied_gets_a_keyframe() -> None:
    board, clock = FakeBoard(TOPIC), ManualClock()
    publisher = publisher_of(board, CountFeed(period_seconds=1), clock=clock)
    publisher.round()
    clock.advance(1)
    board.outcome = Published.KEYFRAME
    publisher.round()
    assert board.shown == [(0, 1, b"K1"), (0, 2, b"K2")]


def test_after_the_board_was_away_everyone_gets_a_keyframe() -> None:
    board, clock = FakeBoard(TOPIC), ManualClock()
    publisher = publisher_of(board, CountFeed(period_seconds=1), clock=clock)
    publisher.round()
    board.away = True
    clock.advance(1)
    assert publisher.round() > 0
    board.away = False
    publisher.round()
    assert [frame.key for frame in board.frames] == [True, True]


def test_a_board_that_answers_and_takes_nothing_is_not_tried_without_a_pause() -> None:
    class FullBoard(FakeBoard):
        def publish(self, topic: Topic, frame: Frame, *, kept_seconds: float) -> Published:
            raise BoardUnavailable("OOM command not allowed")

    feed = CountFeed(period_seconds=1)
    assert publisher_of(FullBoard(TOPIC, Topic("count", "b")), feed).round() > 0
    assert feed.reads == 1


def test_topics_beyond_what_one_thread_reads_are_told_so_and_take_nothing_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dashboard.live.publisher._MOST_TOPICS", 2)
    board, clock, feed = FakeBoard(TOPIC, Topic("count", "m")), ManualClock(), CountFeed(period_seconds=1)
    publisher = publisher_of(board, feed, clock=clock)
    publisher.round()
    assert len(board.frames) == 2
    board.topics |= {Topic("audit", "a"), Topic("count", "a")}
    for _ in range(24):  # six seconds
        clock.advance(0.25)
        publisher.round()
    told = [frame.payload for frame in board.frames if frame.trouble]
    assert told == ["crowded"] * 4  # each of both twice: pages give a silent socket up after ten seconds
    assert len({frame.epoch for frame in board.frames if not frame.trouble}) == 2  # those from before go on
    board.topics.discard(TOPIC)
    publisher.round()
    assert len({frame.epoch for frame in board.frames if not frame.trouble}) == 2  # the unknown channel moved up
    board.topics = {Topic("count", "a")}
    clock.advance(1)
    publisher.round()
    assert board.frames[-1].key


def test_however_many_topics_are_left_out_all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.live.publisher._MOST_TOPICS", 2)
    board, clock, feed = FakeBoard(), ManualClock(), CountFeed(period_seconds=1)
    board.topics = {Topic("count", f"{number}") for number in range(9)}
    publisher = publisher_of(board, feed, clock=clock)
    told = []
    for _ in range(4):
        publisher.round()
        told.append(sum(frame.trouble for frame in board.frames))
        clock.advance(0.25)
    assert told == [2, 4, 6, 7]  # a few each time: the two that are read come in between
    board.topics = set(sorted(board.topics)[:3])
    clock.advance(5)
    publisher.round()
    assert sum(frame.trouble for frame in board.frames) == 8


def test_a_superseded_publisher_stops() -> None:
    board = FakeBoard(TOPIC)
    publisher = publisher_of(board, CountFeed())
    board.outcome = Published.SUPERSEDED
    publisher.round()
    assert publisher.stopped
    assert board.frames == []


def test_what_was_being_read_when_leadership_ended_is_not_published() -> None:
    board = FakeBoard(TOPIC)
    reading, ended = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        reading.set()
        assert ended.wait(10)

    publisher = publisher_of(board, CountFeed(fail=wait))

    def run() -> None:
        publisher.round()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert reading.wait(10)
    publisher.stop()
    ended.set()
    thread.join(10)
    assert board.frames == []


def failing(*numbers: int, error: Callable[[], Exception]) -> Callable[[int], None]:
    def fail(read: int) -> None:
        if read in numbers:
            raise error()

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [(lambda: OperationalError("away"), "database"), (Gone, "gone"), (lambda: KeyError("x"), "broken")],
)
def test_trouble_is_told_and_outlived(error: Callable[[], Exception], code: str) -> None:
    board, clock = FakeBoard(TOPIC), ManualClock()
    publisher = publisher_of(board, CountFeed(period_seconds=1, fail=failing(2, 3, error=error)), clock=clock)
    for _ in range(40):
        publisher.round()
        clock.advance(0.25)
    told = [(frame.trouble, frame.key, frame.payload) for frame in board.frames[:5]]
    assert told == [
        (False, True, b"K1"),
        (True, False, code),
        (True, False, code),
        (False, True, b"K4"),
        (False, False, b"D5"),
    ]


def test_after_a_trouble_the_epoch_is_another() -> None:
    """What was there before may have changed meanwhile, and pages take the same epoch for the same topology."""
    board, clock = FakeBoard(TOPIC), ManualClock()
    publisher = publisher_of(board, CountFeed(period_seconds=1, fail=failing(2, error=Gone)), clock=clock)
    for _ in range(6):
        publisher.round()
        clock.advance(5)
    keys = [frame.epoch for frame in board.frames if frame.key]
    assert len(keys) == 2
    assert keys[0] < keys[1]


def test_a_trouble_that_could_not_be_told_ends_the_epoch_too() -> None:
    """Its encoder is new: what it says next is of other nodes."""
    board, clock = FakeBoard(TOPIC), ManualClock()

    def fail(read: int) -> None:
        if read == 2:
            board.away = True
            raise Gone

    publisher = publisher_of(board, CountFeed(period_seconds=1, fail=fail), clock=clock)
    publisher.round()
    clock.advance(1)
    publisher.round()
    board.away = False
    publisher.round()
    assert board.shown == [(0, 1, b"K1"), (1, 1, b"K3")]


def test_a_feed_that_fails_is_asked_less_often_and_others_go_on() -> None:
    board, clock = FakeBoard(TOPIC, Topic("other", "")), ManualClock()
    bad, good = CountFeed(period_seconds=1, fail=failing(*range(99), error=Gone)), CountFeed(period_seconds=1)
    good.name = "other"
    publisher = publisher_of(board, bad, good, clock=clock)
    for _ in range(240):
        publisher.round()
        clock.advance(0.25)
    assert good.reads == 60
    assert bad.reads <= 16


def test_a_slow_feed_takes_at_most_half_of_the_time() -> None:
    board, clock = FakeBoard(TOPIC), ManualClock()
    feed = CountFeed(period_seconds=1, fail=lambda _: clock.advance(3))
    publisher = publisher_of(board, feed, clock=clock)
    while clock.monotonic() < 90:
        publisher.round()
        clock.advance(0.25)
    assert feed.reads <= 15


def test_reads_may_change_nothing_and_take_no_longer_than_a_page_waits() -> None:
    seen: dict[str, str] = {}

    def look(_: int) -> None:
        with connection.cursor() as cursor:
            for name in ("statement_timeout", "transaction_read_only"):
                cursor.execute(f"SHOW {name}")
                seen[name] = cursor.fetchone()[0]

    publisher_of(FakeBoard(TOPIC), CountFeed(fail=look)).round()
    assert seen == {"statement_timeout": "2s", "transaction_read_only": "on"}

"""The board in a real Valkey: fencing, rings, who watches."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings

from dashboard.live import board as boards
from dashboard.live.board import ANNOUNCE, Board, BoardUnavailable, Keys, LocalBoard, Published, ValkeyBoard
from dashboard.live.ring import Frame, unpack
from dashboard.live.topics import Topic, parse_topic
from tests.dashboard.live.sockets import DEADLINE

TOPIC = Topic("count", "node:7")
PREFIX = f"{settings.GATEHOUSE.valkey_prefix}board-tests:"
URL = settings.GATEHOUSE.valkey_scratch_url or ""
KEPT_SECONDS = 60  # longer than any stall between a frame and a look at it


def put(board: Board, frame: Frame) -> Published:
    return board.publish(TOPIC, frame, kept_seconds=KEPT_SECONDS)


@pytest.fixture
def valkey() -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(URL)
    yield client
    for key in client.scan_iter(f"{PREFIX}*"):
        client.delete(key)
    client.close()


@pytest.fixture
def board(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[ValkeyBoard]:
    monkeypatch.setattr(boards, "_DEADLINE_SECONDS", DEADLINE)  # whatever stalls: a Valkey that is there is not away
    made = ValkeyBoard(URL, prefix=PREFIX)
    yield made
    made.close()


def kept(valkey: redis.Redis) -> list[int]:
    """Sequences of keyframe and ring."""
    keys = Keys(PREFIX)
    records: list[Any] = [valkey.get(keys.keyframe(TOPIC)), *valkey.lrange(keys.ring(TOPIC), 0, -1)]
    return [frame.seq for record in records if record and (frame := unpack(record))]


def test_a_keyframe_begins_the_ring_anew(board: ValkeyBoard, valkey: redis.Redis) -> None:
    for seq, is_key in enumerate([True, False, False, True, False], start=1):
        assert put(board, Frame(1, 1, seq, b"x", key=is_key)) is Published.PUBLISHED
    assert kept(valkey) == [4, 5]
    assert all(valkey.ttl(key) > 0 for key in valkey.scan_iter(f"{PREFIX}*"))  # nothing stays for ever
    assert all(valkey.ttl(key) <= KEPT_SECONDS for key in (Keys(PREFIX).keyframe(TOPIC), Keys(PREFIX).ring(TOPIC)))


def test_an_older_leader_is_refused_from_a_newer_ones_first_frame_on(board: ValkeyBoard, valkey: redis.Redis) -> None:
    put(board, Frame(5, 9, 1, b"old", key=True))
    put(board, Frame(8, 2, 1, b"new", key=True))
    for frame in (
        Frame(5, 9, 2, b"late"),
        Frame(5, 10, 3, b"late", key=True),
        Frame(5, 9, 2, "database", trouble=True),
    ):
        assert put(board, frame) is Published.SUPERSEDED
    assert put(board, Frame(8, 2, 2, b"on")) is Published.PUBLISHED
    assert kept(valkey) == [1, 2]


def test_a_delta_without_its_keyframe_is_not_taken(board: ValkeyBoard, valkey: redis.Redis) -> None:
    put(board, Frame(1, 1, 1, b"x", key=True))
    valkey.delete(Keys(PREFIX).keyframe(TOPIC))
    assert put(board, Frame(1, 1, 2, b"x")) is Published.KEYFRAME


def heard(listening: Any, kind: str) -> Any:
    """What comes next of that kind; a confirmation may take its time, and is no message."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        said = listening.get_message(timeout=1)
        if said is not None and said["type"] == kind:
            return said["data"]
    raise TimeoutError(kind)


def test_trouble_is_passed_on_and_not_kept(board: ValkeyBoard, valkey: redis.Redis) -> None:
    listening: Any = valkey.pubsub()  # type: ignore[no-untyped-call]  # redis-py's
    listening.subscribe(Keys(PREFIX).frames(TOPIC))
    heard(listening, "subscribe")
    put(board, Frame(1, 1, 1, "gone", trouble=True))
    assert unpack(heard(listening, "message")) == Frame(1, 1, 1, "gone", trouble=True)
    assert kept(valkey) == []
    listening.close()


def test_what_is_watched_is_what_was_announced_lately(board: ValkeyBoard, valkey: redis.Redis) -> None:
    assert list(board.watched()) == []
    valkey.eval(ANNOUNCE, 1, Keys(PREFIX).watchers, "15", "fleet:", "gpumem:tenant:acme")
    valkey.zadd(Keys(PREFIX).watchers, {"slo:": 1})  # long ago
    valkey.eval(ANNOUNCE, 1, Keys(PREFIX).watchers, "15", "fleet:")
    assert set(board.watched()) == {Topic("fleet", ""), Topic("gpumem", "tenant:acme")}


def test_without_valkey_whoever_comes_back_to_a_topic_begins_with_a_keyframe() -> None:
    """Nothing is kept there: what comes between two keyframes says nothing to them."""
    watched: dict[Topic, object] = {TOPIC: object()}
    taken: list[int] = []
    board = LocalBoard(watched, lambda _, frame: taken.append(frame.seq))
    for seq, is_key in enumerate([True, False], start=1):
        assert put(board, Frame(1, 1, seq, b"x", key=is_key)) is Published.PUBLISHED
    watched[TOPIC] = object()  # left and watched again between two rounds
    assert put(board, Frame(1, 1, 3, "gone", trouble=True)) is Published.PUBLISHED
    assert put(board, Frame(1, 1, 3, b"x")) is Published.KEYFRAME
    for seq, is_key in enumerate([True, False], start=3):
        assert put(board, Frame(1, 1, seq, b"x", key=is_key)) is Published.PUBLISHED
    assert taken == [1, 2, 3, 3, 4]
    del watched[TOPIC]
    assert not board.watched()


def test_a_board_that_is_away_says_so() -> None:
    board = ValkeyBoard("redis://127.0.0.1:1/0", prefix=PREFIX)
    with pytest.raises(BoardUnavailable):
        board.watched()
    with pytest.raises(BoardUnavailable):
        put(board, Frame(1, 1, 1, b"x", key=True))


@pytest.mark.parametrize("topic", [TOPIC, Topic("fleet", ""), Topic("slo", "tenant:a:b")])
def test_topics_have_names(topic: Topic) -> None:
    assert parse_topic(str(topic)) == topic
    assert Keys("p:").topic(Keys("p:").frames(topic)) == topic

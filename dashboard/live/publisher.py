"""The leader's work: read each watched scope when it is due, encode what changed, put it on the board.

All of it runs in one thread with one database connection, so that however slow a read is, it takes nothing from
pages and requests. A feed that is slow or fails is asked less often and does not hold up the others for long.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connection, transaction

from core.clock import Clock
from dashboard.live.base import Encoder, Feed, Gone
from dashboard.live.board import Board, BoardUnavailable, Published
from dashboard.live.ring import Frame
from dashboard.live.topics import Topic

KEYFRAME_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.25
"""How often it is asked what is watched: what a first viewer waits for."""

_LONGEST_PAUSE_SECONDS: Final = 5.0
"""Of a feed that fails; pages that hear nothing for longer try another socket."""
_STATEMENT_TIMEOUT_MS: Final = 2000
_KEPT_SECONDS: Final = 5.0
"""How old a frame may be, at most, that a new viewer begins with."""

_MOST_TOPICS: Final = 500
"""Beyond that the thread would be late with all of them; those that are left out are told so."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Watched:
    """One scope that is being read."""

    feed: Feed
    encoder: Encoder
    epoch: int
    seq: int = 0
    due: float = 0.0
    keyframe_due: float = 0.0  # 0: before anything else
    failures: int = 0


class Publisher:
    """Made anew for each term of leadership. `round` is called in the thread until `stop` was."""

    def __init__(
        self,
        board: Board,
        feed_named: Callable[[str], Feed | None],
        *,
        fence: int,
        clock: Clock,
        keyframe_seconds: float = KEYFRAME_SECONDS,
    ) -> None:
        self._board = board
        self._feed_named = feed_named
        self._fence = fence
        self._clock = clock
        self._keyframe_seconds = keyframe_seconds
        self._scopes: dict[Topic, _Watched] = {}
        self._stopped = threading.Event()
        self._next_epoch = int(clock.now().timestamp())
        self._blind = False
        self._crowded_due = 0.0
        self._untold: list[Topic] = []
        self.steps = 0
        """Counts what a round has done: one that hangs counts no further. Read from any thread."""

    def stop(self) -> None:
        """Nothing is published from now on, not even what has been read already. From any thread."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def round(self) -> float:
        """Publish what is due; returns for how many seconds there is nothing to do."""
        close_old_connections()
        try:
            topics = self._board.watched()
            # Those that are read already first: whoever comes late takes nothing away from others.
            wanted = sorted(topics, key=lambda topic: (topic not in self._scopes, topic))
            self._follow(wanted[:_MOST_TOPICS])
            self._tell_crowded(wanted[_MOST_TOPICS:])
            self._blind = False
        except BoardUnavailable as error:
            if not self._blind:
                log.warning("live_board_away", error=str(error))
            self._blind = True
            self._want_keyframes()  # whether the last frames came through is not known
            return LOOK_SECONDS * 2
        for topic, scope in sorted(self._scopes.items(), key=lambda item: item[1].due):
            if self.stopped or scope.due > self._clock.monotonic():
                continue
            self.steps += 1
            try:
                self._publish(topic, scope)
            except BoardUnavailable as error:
                # It may answer and yet take nothing, when its memory is full: that must not be tried without a pause.
                log.warning("live_board_refuses", error=str(error))
                self._want_keyframes()
                return LOOK_SECONDS * 2
        now = self._clock.monotonic()
        return max(0.0, min([LOOK_SECONDS, *(scope.due - now for scope in self._scopes.values())]))

    def _follow(self, topics: list[Topic]) -> None:
        """Begin with what is watched now, and forget what nobody watches any longer."""
        for topic in self._scopes.keys() - set(topics):
            del self._scopes[topic]
        for topic in topics:
            feed = self._feed_named(topic.channel)
            if topic not in self._scopes and feed is not None:
                self._scopes[topic] = _Watched(feed, feed.encoder(), self._new_epoch())

    def _tell_crowded(self, topics: list[Topic]) -> None:
        """Their pages would take silence for a socket that is dead, and open another."""
        now = self._clock.monotonic()
        if topics and not self._untold and now >= self._crowded_due:
            self._crowded_due = now + _LONGEST_PAUSE_SECONDS
            log.warning("live_topics_left_out", topics=len(topics))
            self._untold = topics
        # Some in each round, so that however many they are, those that are read are not late.
        telling, self._untold = self._untold[:_MOST_TOPICS], self._untold[_MOST_TOPICS:]
        for topic in set(telling).intersection(topics):
            if self.stopped:
                return
            self.steps += 1
            frame = Frame(self._fence, 0, 0, "crowded", trouble=True)
            if self._board.publish(topic, frame, kept_seconds=_KEPT_SECONDS) is Published.SUPERSEDED:
                self.stop()

    def _new_epoch(self) -> int:
        """Unlike any before it, also those of leaders before this one; fits 32 bits until 2106."""
        self._next_epoch += 1
        return self._next_epoch

    def _want_keyframes(self) -> None:
        for scope in self._scopes.values():
            scope.keyframe_due = 0.0

    def _publish(self, topic: Topic, scope: _Watched) -> None:
        begun = self._clock.monotonic()
        trouble = ""
        try:
            self._send(topic, scope)
            scope.failures = 0
        except Gone:
            trouble = "gone"
        except (DatabaseError, InterfaceError) as error:
            log.warning("live_feed_failed", topic=str(topic), error=str(error))
            close_old_connections()
            trouble = "database"
        except BoardUnavailable:
            raise
        except Exception:
            # One feed's mistake must not take the others' frames away. What its encoder remembers may be wrong.
            log.exception("live_feed_broken", topic=str(topic))
            trouble = "broken"
        if trouble:
            scope.failures += 1
            frame = Frame(self._fence, scope.epoch, scope.seq, trouble, trouble=True)
            scope.encoder, scope.keyframe_due = scope.feed.encoder(), 0.0
            if not scope.encoder.whole:  # a new encoder does not know what the old one's epoch was of
                scope.epoch, scope.seq = self._new_epoch(), 0
            if not self.stopped:  # last: the board may be away
                self._offer(topic, scope, frame)
        ended = self._clock.monotonic()
        pause = max(scope.feed.period_seconds, 2 * (ended - begun))  # never more than half of the thread's time
        pause = min(pause * 2 ** min(scope.failures, 5), max(_LONGEST_PAUSE_SECONDS, pause))
        # In step with when it was due, so that a second stays a second.
        scope.due = max(ended, (scope.due or begun) + pause) if not scope.failures else ended + pause

    def _send(self, topic: Topic, scope: _Watched) -> None:
        now = self._clock.now()
        state = _read(scope.feed, topic.scope, now)
        scope.seq += 1
        if self._clock.monotonic() < scope.keyframe_due:
            payload = scope.encoder.delta(state, epoch=scope.epoch, seq=scope.seq, at=now)
            if payload is not None:
                frame = Frame(self._fence, scope.epoch, scope.seq, payload)
                if self.stopped or self._offer(topic, scope, frame) is Published.PUBLISHED:
                    return
            elif not scope.encoder.whole:
                scope.epoch, scope.seq = self._new_epoch(), 1
        payload = scope.encoder.keyframe(state, epoch=scope.epoch, seq=scope.seq, at=now)
        if not self.stopped:
            self._offer(topic, scope, Frame(self._fence, scope.epoch, scope.seq, payload, key=True))
        scope.keyframe_due = self._clock.monotonic() + self._keyframe_seconds

    def _offer(self, topic: Topic, scope: _Watched, frame: Frame) -> Published:
        kept_seconds = max(_KEPT_SECONDS, 3 * scope.feed.period_seconds)
        outcome = self._board.publish(topic, frame, kept_seconds=kept_seconds)
        if outcome is Published.SUPERSEDED:
            log.warning("live_publisher_superseded", fence=self._fence)
            self.stop()
        return outcome


def _read(feed: Feed, scope: str, now: datetime) -> object:
    """One consistent look that may change nothing and takes no longer than a page may wait for it."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET LOCAL statement_timeout = {_STATEMENT_TIMEOUT_MS}; SET LOCAL transaction_read_only = on"
            )
        return feed.read(scope, now=now)

"""One browser's socket as the hub sees it: what it watches, and what it has not been sent yet.

Nothing is queued for a client but a few answers: frames stay in the rings that all viewers share, and a client
that is ready for the next one asks its ring what comes after the last.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dashboard.live.base import Feed, Payload, Viewer
from dashboard.live.ring import Position, Ring
from dashboard.live.topics import Topic

_MOST_ANSWERS: Final = 64
UNKNOWN_STANDING: Final = "unknown_standing"
"""Why a socket ends when nobody can say whether its viewer may still watch: its page may try again."""


@dataclass(slots=True, eq=False)
class Watched:
    """One topic that viewers of this process watch."""

    topic: Topic
    feed: Feed
    ring: Ring = field(default_factory=Ring)
    viewers: "set[Subscription]" = field(default_factory=set)
    trouble: str = ""
    troubles: int = 0  # how often it was told
    news_at: float = 0.0  # on the loop's clock

    def wake_viewers(self) -> None:
        for viewer in self.viewers:
            viewer.connection.wake.set()

    def tell_trouble(self, code: str) -> None:
        """Viewers keep what they have and are told that it is old."""
        self.trouble = code
        self.troubles += 1
        self.wake_viewers()


@dataclass(slots=True, eq=False)
class Subscription:
    connection: "Connection"
    number: int
    watched: Watched
    position: Position | None = None
    troubles: int = 0

    def next(self) -> Payload | None:
        watched = self.watched
        frame = watched.ring.next_after(self.position)
        if frame is not None:
            self.position = frame.position
            return frame.wire(self.number)
        if watched.trouble and self.troubles != watched.troubles:
            self.troubles = watched.troubles
            return message(self.number, "trouble", code=watched.trouble)
        return None


class Connection:
    """`next` gives what to send, `wake` is set when there may be something, `ended` says why to close."""

    def __init__(self, session_key: str, viewer: Viewer) -> None:
        self.session_key = session_key
        self.viewer = viewer
        self.subscriptions: dict[int, Subscription] = {}
        self.wake = asyncio.Event()
        self.ended: str | None = None
        self._answers: deque[Payload] = deque()

    def answer(self, payload: Payload) -> bool:
        """Queue an answer; False when the client asks without reading what it is told."""
        if len(self._answers) >= _MOST_ANSWERS:
            return False
        self._answers.append(payload)
        self.wake.set()
        return True

    def end(self, reason: str) -> None:
        """Close it with a word that says why; nothing more is sent."""
        self.ended = self.ended or reason
        self.wake.set()

    def next(self) -> Payload | None:
        if self.ended is not None:
            return None
        if self._answers:
            return self._answers.popleft()
        for subscription in self.subscriptions.values():
            payload = subscription.next()
            if payload is not None:
                # To the end, so that one that has much to send does not hold up the others.
                if len(self.subscriptions) > 1:
                    self.subscriptions[subscription.number] = self.subscriptions.pop(subscription.number)
                return payload
        return None


def message(number: int, operation: str, **more: object) -> str:
    """What is no frame: `subscribed`, `trouble` and `error`."""
    return msgspec.json.encode({"n": number, "op": operation, **more}).decode()

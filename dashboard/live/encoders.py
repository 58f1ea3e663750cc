"""The encoders of feeds that speak JSON: the whole each time, rows that change, or a tail to which newer ones come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from dashboard.live.base import Payload

_encoder: Final = msgspec.json.Encoder()


def envelope(channel: str, version: str, *, epoch: int, seq: int, at: datetime, body: bytes = b"{}") -> str:
    """A text frame: the members that every frame has, then those of the JSON object `body`."""
    head = _encoder.encode({"ch": channel, "v": version, "epoch": epoch, "seq": seq, "at": at.timestamp()})
    return (head if body == b"{}" else head[:-1] + b"," + body[1:]).decode()


class JsonEncoder:
    """Sends the whole state where it changed, and a few bytes where it did not.

    `state` is what msgspec encodes as a JSON object: a dict or a Struct. The pages' script keeps the short frames
    (`"same": true`) to itself: `onFrame` gets whole ones.
    """

    whole: bool = True

    def __init__(self, channel: str, version: str) -> None:
        """`version` is the frames' `v`, such as "fleet.v1"."""
        self._channel = channel
        self._version = version
        self._sent = b""

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        self._sent = _encoder.encode(state)
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=self._sent)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        if _encoder.encode(state) != self._sent:
            return None
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=b'{"same":true}')


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by what tells them apart; each is what msgspec encodes."""

    rows: Mapping[str, Any]


class RowsEncoder:
    """Keyframes hold all rows (`rows`), deltas those that changed (`set`) and the names of those that are gone."""

    whole: bool = True

    def __init__(self, channel: str, version: str) -> None:
        self._channel = channel
        self._version = version
        self._sent: dict[str, bytes] = {}

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        self._sent = _encoded(state)
        body = _encoder.encode({"rows": {key: msgspec.Raw(row) for key, row in self._sent.items()}})
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=body)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        rows, sent = _encoded(state), self._sent
        self._sent = rows
        changed = {key: msgspec.Raw(row) for key, row in rows.items() if sent.get(key) != row}
        gone = [key for key in sent if key not in rows]
        body = _encoder.encode({"set": changed, "gone": gone})
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=body)


def _encoded(state: object) -> dict[str, bytes]:
    assert isinstance(state, Rows)
    return {key: _encoder.encode(row) for key, row in state.rows.items()}


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest rows of a growing list, oldest first, each with a key that no other row has."""

    rows: Sequence[tuple[str, Any]]


class TailEncoder:
    """Keyframes hold the newest rows (`rows`), deltas those that came since (`more`); rows never change.

    `gap` is true where there may be rows between these and those before: a page then says that some were not shown.
    """

    whole: bool = True

    def __init__(self, channel: str, version: str, *, most: int) -> None:
        """`most` is how many rows a state has at most."""
        self._channel = channel
        self._version = version
        self._most = most
        self._known: dict[str, None] | None = None

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        rows = _tail(state).rows
        gap = self._missed(rows)
        self._remember(rows)
        body = _encoder.encode({"rows": [row for _, row in rows], "gap": gap})
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=body)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        rows = _tail(state).rows
        if self._missed(rows):
            return None
        more = [row for key, row in rows if key not in (self._known or {})]
        self._remember(rows)
        body = _encoder.encode({"more": more})
        return envelope(self._channel, self._version, epoch=epoch, seq=seq, at=at, body=body)

    def _missed(self, rows: Sequence[tuple[str, Any]]) -> bool:
        """Whether more rows may have come than fit: none of those that viewers have is still among the newest."""
        known = self._known
        if known is None or not rows:
            return False
        return not any(key in known for key, _ in rows) if known else len(rows) >= self._most

    def _remember(self, rows: Sequence[tuple[str, Any]]) -> None:
        self._known = {key: None for key, _ in rows}


def _tail(state: object) -> Tail:
    assert isinstance(state, Tail)
    return state

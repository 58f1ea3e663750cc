"""UUIDv7 keys (RFC 9562): sortable by creation time, made here because Python has none before 3.14."""

import os
import threading
import time
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

_lock = threading.Lock()
_last_ms = 0
_sequence = 0
_SEQUENCE_LIMIT: Final = 1 << 12
_RANDOM_BYTES: Final = 10
_POOL_BYTES: Final = 512 * _RANDOM_BYTES
_pool = b""  # randomness fetched ahead: a system call for each id costs more than the rest of it
_pool_left = 0


def _forget_pool() -> None:
    global _pool_left
    _pool_left = 0


os.register_at_fork(after_in_child=_forget_pool)  # or parent and child would draw the same


def uuid7() -> UUID:
    """A new UUIDv7: 48 bits of Unix milliseconds, a 12-bit counter, 62 random bits.

    Values made by one process strictly increase, also when the wall clock steps back: the
    millisecond then stays at the highest seen, and the counter (or the millisecond) moves on.
    """
    global _last_ms, _sequence, _pool, _pool_left
    now_ms = time.time_ns() // 1_000_000
    with _lock:
        if not _pool_left:
            _pool = os.urandom(_POOL_BYTES)
            _pool_left = _POOL_BYTES
        random_bits = int.from_bytes(_pool[_pool_left - _RANDOM_BYTES : _pool_left])
        _pool_left -= _RANDOM_BYTES
        if now_ms > _last_ms:
            _last_ms = now_ms
            _sequence = random_bits >> 70  # 10 of 80 bits: room to count up within the millisecond
        else:
            _sequence += 1
            if _sequence >= _SEQUENCE_LIMIT:
                _last_ms += 1
                _sequence = 0
        ms, sequence = _last_ms, _sequence
    return uuid7_from(ms, sequence, random_bits)


def uuid7_from(unix_ms: int, sequence: int = 0, random_bits: int = 0) -> UUID:
    """The UUIDv7 of a given time; with the defaults, the smallest one of that millisecond.

    Raises ValueError when `unix_ms` does not fit 48 bits or `sequence` 12 bits.
    """
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError(f"unix_ms {unix_ms} does not fit 48 bits")
    if not 0 <= sequence < _SEQUENCE_LIMIT:
        raise ValueError(f"sequence {sequence} does not fit 12 bits")
    value = unix_ms << 80 | 0x7 << 76 | sequence << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return UUID(int=value)


def uuid7_datetime(value: UUID) -> datetime:
    """The UTC time, to the millisecond, that a UUIDv7 was made at.

    Raises ValueError for a UUID of another version.
    """
    if value.version != 7:
        raise ValueError(f"{value} is not a UUIDv7")
    return datetime.fromtimestamp((value.int >> 80) / 1000, tz=UTC)

"""Takes counts of refused requests out of Valkey's stream into the database, in the order in which they came.

Any number may run: one at a time holds the lock. An entry leaves the stream after the transaction that counted it has
committed; given twice, it is counted once.
"""

import threading
from typing import Any, Final

import msgspec
import redis
import structlog
from django.db import DataError, InterfaceError, OperationalError, connection, transaction

from tenants.refusals import STREAM, RefusalBatch, decode_batch
from tenants.services.refusals import lock_refusals, record_refusals

logger = structlog.get_logger(__name__)

_EVERY_SECONDS: Final = 2.0
_BATCHES: Final = 200


class RefusalDrain:
    """Blocking: `run` until `stop` is set."""

    def __init__(self, client: "redis.Redis", *, prefix: str, stop: threading.Event) -> None:
        self._client = client
        self._stream = prefix + STREAM
        self._stop = stop

    def run(self) -> None:
        """Drain until stopped; a database or Valkey that is away is waited for."""
        complained = False
        while not self._stop.wait(_EVERY_SECONDS):
            try:
                while self.turn() == _BATCHES and not self._stop.is_set():
                    pass
                complained = False
            except (redis.RedisError, OperationalError, InterfaceError) as error:
                connection.close()
                if not complained:
                    logger.warning("refusals_not_recorded", error=str(error))
                complained = True
        connection.close()

    def turn(self) -> int:
        """One round: returns how many entries were taken. Raises what the servers raise."""
        with transaction.atomic():
            if not lock_refusals():
                return 0
            entries: Any = self._client.xrange(self._stream, count=_BATCHES)
            if not entries:
                return 0
            _record(_batches(entries))
        self._client.xdel(self._stream, *(entry_id for entry_id, _ in entries))
        return len(entries)


def _record(batches: list[RefusalBatch]) -> None:
    """One that the database refuses is counts, and no bill: it is told, and passed over."""
    try:
        record_refusals(batches)
    except (DataError, ValueError, OverflowError, OSError) as error:  # the last three of a moment that is none
        if len(batches) == 1:
            logger.error("refusals_refused", process_id=str(batches[0].process_id), error=str(error))
            return
        for batch in batches:
            _record([batch])


def _batches(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[RefusalBatch]:
    found: list[RefusalBatch] = []
    for entry_id, fields in entries:
        try:
            found.append(decode_batch(fields.get(b"d", b"")))
        except msgspec.DecodeError as error:
            logger.error("refusals_unreadable", entry_id=entry_id.decode(), error=str(error))
    return found

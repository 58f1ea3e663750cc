"""Takes usage rows out of Valkey's stream, and out of dead processes' spools, into the ledger.

Any number may run: they share a consumer group. An entry leaves the stream after the transaction that
holds its row has committed; given twice, it still is one row.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import redis
import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection

from gateway.models import EndedSpool
from gateway.relay.recovery import claim_dead_spools
from tenants.services.ledger import Poison, Progress, record_usage, touch_keys
from tenants.usage import GROUP, MARK_SECONDS, STREAM, UsageRow, decode_row, encode_row, mark_key

logger = structlog.get_logger(__name__)

BATCH_ROWS: Final = 500
_BLOCK_MS: Final = 1_000
_CLAIM_EVERY_SECONDS: Final = 2.0
_CLAIM_IDLE_MS: Final = 5_000
_RECOVER_EVERY_SECONDS: Final = 2.0
_AHEAD_SECONDS: Final = 30.0
_FORGET_IDLE_MS: Final = 600_000
_BACKOFF_SECONDS: Final = 0.5
_GATHER_SECONDS: Final = 0.1  # between batches that are not full: a transaction costs as much as many rows
_UNSTORABLE: Final = (DataError, IntegrityError, ValueError, OverflowError)

Entry = tuple[bytes, dict[bytes, bytes]]


class LedgerDrain:
    """One member of the group. Blocking: `run` until `stop` is set.

    `spools`: the folder of this machine's spools. `monotonic`: seconds.
    """

    def __init__(
        self,
        client: "redis.Redis",
        *,
        prefix: str,
        spools: Path,
        stop: threading.Event,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = prefix + STREAM
        self._spools = spools
        self._stop = stop
        self._monotonic = monotonic
        self._consumer = str(uuid4())
        self._own_pending = True  # entries given to this consumer whose transaction failed
        self._grouped = False
        self._claim_at = 0.0
        self._recover_at = 0.0
        self._ahead: dict[UUID, set[int]] = {}  # sequences that are in, after a gap
        self._ahead_since: dict[UUID, float] = {}

    def run(self) -> None:
        """Drain until stopped; a database or Valkey that is away is waited for."""
        complained = False
        while not self._stop.is_set():
            try:
                if self.turn() < BATCH_ROWS:
                    self._stop.wait(_GATHER_SECONDS)
                complained = False
            except redis.RedisError as error:
                self._grouped = False
                complained = self._complain("usage_stream_away", error, complained)
            except (OperationalError, InterfaceError) as error:
                connection.close()
                self._own_pending = True
                complained = self._complain("ledger_away", error, complained)
        self._leave()

    def turn(self) -> int:
        """One round: returns how many entries were taken. Raises what the servers raise."""
        if not self._grouped:
            self._join()
        now = self._monotonic()
        if now >= self._claim_at:
            self._claim_at = now + _CLAIM_EVERY_SECONDS
            self._handle(self._claim())
        entries = self._read()
        self._handle(entries)
        if self._ahead and len(entries) < BATCH_ROWS:
            self._catch_up()
        if len(entries) < BATCH_ROWS and now >= self._recover_at:  # what the stream has comes first
            self._recover_at = now + _RECOVER_EVERY_SECONDS
            self.recover()
        return len(entries)

    def recover(self) -> int:
        """Take over the spools of dead processes; returns how many rows they had."""
        total = 0
        for spool in claim_dead_spools(self._spools):
            try:
                count = last = 0
                batch: list[_Item] = []
                for row in spool.rows():
                    count += 1
                    last = row.sequence
                    batch.append(_Item(f"spool-{row.id}", encode_row(row), row, row.process_id, row.sequence))
                    if len(batch) == BATCH_ROWS:
                        self._record(batch)
                        batch = []
                self._record(batch)
                # What limits hold for the process goes once nothing more of it can come; see limit_compare.
                EndedSpool.objects.update_or_create(pk=spool.process_id, defaults={"sequence": last})
            except BaseException:
                spool.release()
                raise
            spool.remove()
            logger.info("spool_recovered", process_id=str(spool.process_id), rows=count)
            total += count
        return total

    def _complain(self, event: str, error: Exception, complained: bool) -> bool:
        if not complained:
            logger.warning(event, error=str(error))
        self._stop.wait(_BACKOFF_SECONDS)
        return True

    def _join(self) -> None:
        try:
            self._client.xgroup_create(self._stream, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        for consumer in self._client.xinfo_consumers(self._stream, GROUP):
            if consumer["pending"] == 0 and consumer["idle"] > _FORGET_IDLE_MS:
                self._client.xgroup_delconsumer(self._stream, GROUP, consumer["name"])
        self._grouped = True
        self._own_pending = True

    def _leave(self) -> None:
        connection.close()
        try:
            for consumer in self._client.xinfo_consumers(self._stream, GROUP):
                if consumer["name"].decode() == self._consumer and consumer["pending"] == 0:
                    self._client.xgroup_delconsumer(self._stream, GROUP, self._consumer)
        except redis.RedisError as error:
            logger.debug("drain_left_its_name", error=str(error))

    def _read(self) -> list[Entry]:
        if self._own_pending:
            entries = self._read_from("0", None)
            self._own_pending = bool(entries)
            if entries:
                return entries
        return self._read_from(">", _BLOCK_MS)

    def _read_from(self, start: str, block_ms: int | None) -> list[Entry]:
        reply: Any = self._client.xreadgroup(
            GROUP, self._consumer, {self._stream: start}, count=BATCH_ROWS, block=block_ms
        )
        return list(reply[0][1]) if reply else []

    def _claim(self) -> list[Entry]:
        """Entries that another consumer took and did not finish: it is dead or stuck."""
        reply: Any = self._client.xautoclaim(
            self._stream, GROUP, self._consumer, min_idle_time=_CLAIM_IDLE_MS, count=BATCH_ROWS
        )
        return list(reply[1])

    def _handle(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        marks = self._record([_item(entry_id, fields or {}) for entry_id, fields in entries])
        with self._client.pipeline(transaction=False) as pipeline:
            ids = [entry_id for entry_id, _ in entries]
            pipeline.xack(self._stream, GROUP, *ids)
            pipeline.xdel(self._stream, *ids)
            self._publish(marks, pipeline)
            pipeline.execute()

    def _publish(self, marks: Mapping[UUID, int], client: "redis.Redis") -> None:
        for process_id, mark in marks.items():
            client.set(mark_key(self._prefix, process_id), mark, ex=MARK_SECONDS)

    def _catch_up(self) -> None:
        """Another drain may have closed the gaps that rows of this one stand behind."""
        now = self._monotonic()
        for process_id in [p for p, since in self._ahead_since.items() if now - since > _AHEAD_SECONDS]:
            self._note_ahead(process_id, set())  # its rows are sent again if anyone still waits
        if self._ahead:
            progress = {process_id: Progress(0, sequences) for process_id, sequences in self._ahead.items()}
            marks = record_usage([], progress=progress).marks
            for process_id, mark in marks.items():
                self._note_ahead(process_id, {s for s in progress[process_id].done if s > mark})
            self._publish(marks, self._client)

    def _note_ahead(self, process_id: UUID, sequences: set[int]) -> None:
        if sequences:
            self._ahead[process_id] = sequences
            self._ahead_since.setdefault(process_id, self._monotonic())
        else:
            self._ahead.pop(process_id, None)
            self._ahead_since.pop(process_id, None)

    def _record(self, items: "Sequence[_Item]") -> dict[UUID, int]:
        """Commit rows and dead letters; returns marks.

        A batch that the database refuses is halved until what is left is one row, which becomes a dead letter.
        """
        if not items:
            return {}
        rows = [item.row for item in items if item.row is not None]
        letters = [Poison(item.entry_id, item.payload, item.reason) for item in items if item.row is None]
        progress = self._progress(items)
        try:
            recorded = record_usage(rows, progress=progress, poison=letters)
        except _UNSTORABLE as error:
            if not rows:
                raise  # letters are bytes and text: only a defect of ours gets here
            if len(items) > 1:
                middle = len(items) // 2
                return self._record(items[:middle]) | self._record(items[middle:])
            logger.error("usage_row_refused", entry_id=items[0].entry_id, error=str(error))
            return self._record([replace(items[0], row=None, reason=str(error))])
        for process_id, mark in recorded.marks.items():
            self._note_ahead(process_id, {s for s in progress[process_id].done if s > mark})
        touch_keys(_last_used(rows))
        return dict(recorded.marks)

    def _progress(self, items: "Sequence[_Item]") -> dict[UUID, Progress]:
        done: dict[UUID, set[int]] = {}
        through: dict[UUID, int] = {}
        for item in items:
            if item.process_id is not None:
                done.setdefault(item.process_id, set(self._ahead.get(item.process_id, ()))).add(item.sequence)
                through[item.process_id] = max(item.through, through.get(item.process_id, 0))
        return {process_id: Progress(through[process_id], sequences) for process_id, sequences in done.items()}


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry of the stream, or a row of a dead spool; without a row it is a dead letter."""

    entry_id: str
    payload: bytes
    row: UsageRow | None
    process_id: UUID | None  # None: not an entry of ours, nobody waits for its mark
    sequence: int
    through: int = 0
    reason: str = ""


def _item(entry_id: bytes, fields: dict[bytes, bytes]) -> _Item:
    payload = fields.get(b"d", b"")
    row, reason = None, ""
    try:
        row = decode_row(payload)
    except msgspec.DecodeError as error:
        reason = str(error)
    process_id, sequence, through = None, 0, 0
    try:
        process_id = UUID(bytes=fields[b"p"])
        sequence, through = int(fields[b"s"]), int(fields.get(b"t", b"0"))
    except (KeyError, ValueError) as error:
        row, reason = None, f"not an entry of ours: {error!r}"
    return _Item(entry_id.decode(), payload, row, process_id, sequence, through, reason)


def _last_used(rows: Sequence[UsageRow]) -> dict[UUID, float]:
    last_used: dict[UUID, float] = {}
    for row in rows:
        if row.key_id is not None:
            last_used[row.key_id] = max(row.started_at, last_used.get(row.key_id, 0.0))
    return last_used

"""A process's usage on its own disk: what it owes the ledger survives its death.

A spool is a folder with a lock file, held while the process lives, and segments (see gateway.relay.frames).
An `open` frame is written before a request is forwarded, a `row` frame when it ended; writes go to the
kernel at once, so that killing the process loses nothing, and to the disk by `sync`, now and then. Room for
the row is reserved with the open: a full disk refuses new requests, never the row of one that was forwarded.
A segment goes once the ledger has all rows in it; opens that still run are first written to the next one.
"""

import errno
import fcntl
import os
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from gateway.relay.frames import HEADER_BYTES, FrameKind, encode_frame
from tenants.usage import OpenRow, UsageRow, encode_row

SEGMENT_BYTES: Final = 4 * 1024 * 1024
_ROW_EXTRA_BYTES: Final = 1200  # what a row's frame may have beyond its open's: engine's id, numbers, ids
LOCK: Final = "lock"
DRAFT_PREFIX: Final = "."
SUFFIX: Final = ".spool"


class SpoolFull(Exception):
    """No room for another request: the cap is reached or the disk is full."""


class Spool:
    """One process's spool. Not thread-safe, except that `sync` and `discard` may run on one other thread."""

    def __init__(self, folder: Path, process_id: UUID, *, cap_bytes: int, lock: int) -> None:
        self.process_id = process_id
        self.last_sequence = 0
        self.acknowledged = 0
        self._folder = folder
        self._lock = lock
        self._cap_bytes = cap_bytes
        self._segment_bytes = max(HEADER_BYTES, min(SEGMENT_BYTES, cap_bytes // 4))
        self._segments: list[_Segment] = []
        self._opens: dict[int, bytes] = {}  # request (an int hashes in no time) -> its frame
        self._reserved_bytes = 0
        self._next_number = 1

    @classmethod
    def create(cls, parent: Path, process_id: UUID, *, cap_bytes: int) -> "Spool":
        """A new spool under `parent`. Raises OSError, or SpoolFull when the disk is."""
        parent.mkdir(parents=True, exist_ok=True)
        draft = parent / f"{DRAFT_PREFIX}{process_id}"  # complete and locked before others can see it
        draft.mkdir(mode=0o700)
        lock = os.open(draft / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        spool = cls(parent / str(process_id), process_id, cap_bytes=cap_bytes, lock=lock)
        try:
            draft.rename(spool._folder)
            spool._rotate(0)
        except BaseException:
            os.close(lock)
            for folder in (draft, spool._folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return spool

    @property
    def bytes_held(self) -> int:
        """Bytes of all segments on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def unacknowledged(self) -> int:
        """Rows that the ledger is not known to have."""
        return self.last_sequence - self.acknowledged

    @property
    def open_count(self) -> int:
        return len(self._opens)

    def append_open(self, row: OpenRow) -> None:
        """Note a request before it is forwarded. Raises SpoolFull."""
        frame = encode_frame(FrameKind.OPEN, encode_row(row))
        needed = len(frame) + _reserve(frame)
        if self._current.room - self._reserved_bytes < needed:
            self._rotate(needed)
        try:
            self._current.append(frame)
        except OSError as error:
            raise SpoolFull(f"{self._folder} cannot be written: {error}") from error
        self._opens[row.id.int] = frame
        self._reserved_bytes += _reserve(frame)

    def append_row(self, row: UsageRow) -> None:
        """Note how a request ended; `row.sequence` must be `last_sequence + 1`. Raises OSError.

        A row that was not opened here (of a dead process's spool) may also raise SpoolFull.
        """
        frame = encode_frame(FrameKind.ROW, encode_row(row))
        segment = self._current
        if row.id.int not in self._opens and segment.room - self._reserved_bytes < len(frame):
            self._rotate(len(frame))
            segment = self._current
        segment.append_row(frame, row.sequence)
        self.last_sequence = row.sequence
        opened = self._opens.pop(row.id.int, None)
        if opened is not None:
            self._reserved_bytes -= _reserve(opened)

    def rows_after(self, sequence: int, *, limit: int) -> list[tuple[int, bytes]]:
        """(sequence, encoded row) of the rows after `sequence`, at most `limit`, oldest first."""
        found: list[tuple[int, bytes]] = []
        for segment in self._segments:
            if segment.last_sequence <= sequence:
                continue
            for number, payload in segment.rows_from(max(sequence + 1, segment.first_sequence)):
                found.append((number, payload))
                if len(found) == limit:
                    return found
        return found

    def acknowledge(self, sequence: int) -> "list[Discarded]":
        """The ledger has everything up to `sequence`. Returns files to `discard`, perhaps on another thread."""
        self.acknowledged = max(self.acknowledged, min(sequence, self.last_sequence))
        discarded: list[Discarded] = []
        while len(self._segments) > 1 and self._segments[0].last_sequence <= self.acknowledged:
            discarded.append(self._segments.pop(0).give_up())
        return discarded

    def sync(self) -> None:
        """Bring everything written so far to the disk. Blocks. Raises OSError."""
        for segment in list(self._segments):
            segment.sync()

    def close(self) -> bool:
        """Remove the folder when nothing in it is owed (True), else leave it for whoever adopts it (False)."""
        owed = bool(self._opens) or self.unacknowledged > 0
        if not owed and self._lock >= 0:
            # The lock file goes first: who opened it before finds it gone after locking it.
            (self._folder / LOCK).unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)
        self.release()
        return not owed

    def release(self) -> None:
        """Close all files and give up the lock; the folder stays."""
        for segment in self._segments:
            discard(segment.give_up(keep=True))
        self._segments.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _current(self) -> "_Segment":
        return self._segments[-1]

    def _rotate(self, needed: int) -> None:
        carried = b"".join(self._opens.values())
        size = max(self._segment_bytes, 2 * (len(carried) + self._reserved_bytes + needed))
        if self.bytes_held + size > max(self._cap_bytes, self._segment_bytes):
            raise SpoolFull(f"the usage spool holds {self.bytes_held} bytes that are not in the ledger yet")
        number = self._next_number
        self._next_number += 1
        try:
            segment = _Segment.create(self._folder / f"{number:08d}{SUFFIX}", size)
            try:
                segment.append(carried)
            except OSError:
                discard(segment.give_up())
                raise
        except OSError as error:
            raise SpoolFull(f"{self._folder} cannot be written: {error}") from error
        segment.last_sequence = self.last_sequence
        self._segments.append(segment)


class Discarded(msgspec.Struct, frozen=True):
    """A file that nobody needs any more (or, with `keep`, only its descriptor)."""

    descriptor: int
    path: Path | None


def discard(file: Discarded) -> None:
    """Close and delete. Blocks a little."""
    os.close(file.descriptor)
    if file.path is not None:
        file.path.unlink(missing_ok=True)


class _Segment:
    """One file of a spool; knows where each of its rows is."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.size = size
        self.first_sequence = 1
        self.last_sequence = 0
        self._path = path
        self._descriptor = descriptor
        self._end = 0
        self._synced_end = 0
        self._starts = array("I")
        self._ends = array("I")

    @classmethod
    def create(cls, path: Path, size: int) -> "_Segment":
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _allocate(descriptor, size)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, size)

    @property
    def room(self) -> int:
        return self.size - self._end

    def append(self, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data, self._end)
        if written != len(data):
            raise OSError(errno.ENOSPC, "short write")
        self._end += written

    def append_row(self, frame: bytes, sequence: int) -> None:
        start = self._end
        self.append(frame)
        self.note_row(sequence, start, self._end)

    def note_row(self, sequence: int, start: int, end: int) -> None:
        if not self._starts:
            self.first_sequence = sequence
        self._starts.append(start)
        self._ends.append(end)
        self.last_sequence = sequence
        self._end = max(self._end, end)

    def rows_from(self, sequence: int) -> Iterator[tuple[int, bytes]]:
        for index in range(sequence - self.first_sequence, len(self._starts)):
            start, end = self._starts[index] + HEADER_BYTES, self._ends[index]
            yield self.first_sequence + index, os.pread(self._descriptor, end - start, start)

    def sync(self) -> None:
        end = self._end
        if end > self._synced_end:
            os.fdatasync(self._descriptor)
            self._synced_end = end

    def give_up(self, *, keep: bool = False) -> Discarded:
        return Discarded(self._descriptor, None if keep else self._path)


def _reserve(open_frame: bytes) -> int:
    return len(open_frame) + _ROW_EXTRA_BYTES


def _allocate(descriptor: int, size: int) -> None:
    """Make sure of the room; where the system cannot, the file is only made that long."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(descriptor, size)

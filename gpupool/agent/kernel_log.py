"""Follows the kernel's log as one more source: without a thread, and without ever waiting for it.

The place up to which it was read is kept, so that an agent that starts anew tells of no error a second time. Without
one, what is older than an hour is passed over.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from core.clock import Clock
from gpupool.agent.state import read_file, replace_file
from gpupool.discovery.base import Inventory, Noticed
from gpupool.discovery.kernel_lines import parse_line
from gpupool.discovery.kernel_log import KernelLog

log = structlog.get_logger(__name__)

DEVICE: Final = Path("/dev/kmsg")
_MOST_RECORDS: Final = 2000  # of one look; the rest is read at the next
_MOST_BYTES: Final = _MOST_RECORDS * 256  # the same of a file
_LARGEST_RECORD: Final = 8192  # the kernel's own bound, with what it prints of its keys
_LOOK_AGAIN_SECONDS: Final = 60.0
_OLDEST_SECONDS: Final = 3600.0  # of what a first look tells: nobody shall act on last month's errors


class _Place(msgspec.Struct, kw_only=True):
    """Up to where it was read: a number of the kernel's ring, or a place in a file."""

    boot_id: str
    sequence: int = -1
    inode: int = 0
    offset: int = 0


class KernelLogSource:
    """Errors in the kernel's log. It finds no devices."""

    def __init__(
        self,
        place_path: Path,
        *,
        boot_id: str,
        clock: Clock,
        path: Path = DEVICE,
        open_log: Callable[[Path], int] | None = None,
        oldest_seconds: float = _OLDEST_SECONDS,
    ) -> None:
        """`place_path` keeps the place. `path` is the kernel's device, or a file that its log is written to."""
        self._place_path = place_path
        self._path = path
        self._clock = clock
        self._open_log = open_log or _open
        self._oldest = oldest_seconds
        self._boot_id = boot_id
        self._place: _Place | None = None
        self._lines = KernelLog(boot_time=None)
        self._fd: int | None = None
        self._not_before = 0.0
        self._unsaved = False
        self._said = ""
        self._drained = False
        self._read_until: float | None = None  # the moment up to which everything has been read
        self._resumed = False  # an agent of this boot has read it before

    @property
    def away(self) -> str:
        """Why it is not read, in a sentence; empty while it is."""
        return self._said

    async def probe(self) -> Inventory:
        if self._place is None:
            self._place = self._load()
        self._save()  # what was noticed at the last look is in the buffer by now
        now = self._clock.now().timestamp()
        if self._fd is None and not self._begin(now):
            return Inventory()
        try:
            noticed = self._lines.feed_all(self._records(), now=now)
        except OSError as error:
            self._give_up(f"The kernel's log {self._path} cannot be read: {error.strerror}.")
            return Inventory()
        timed = [self._timed(one, now) for one in noticed]
        self._read_until = now if self._drained else None
        self._unsaved |= bool(noticed)
        return Inventory(noticed=tuple(one for one in timed if self._resumed or one.at >= now - self._oldest))

    async def close(self) -> None:
        self._save()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _timed(self, noticed: Noticed, now: float) -> Noticed:
        """Its moment, as far as it can be told better: what the last look has not seen was written since.

        The kernel's clock is not set right by any other, and is minutes off after some weeks.
        """
        earliest = 0.0 if self._read_until is None else self._read_until
        return replace(noticed, at=min(max(noticed.at, earliest), now))

    def _begin(self, now: float) -> bool:
        if self._clock.monotonic() < self._not_before:
            return False
        try:
            self._fd = self._open_log(self._path)
        except OSError as error:
            self._give_up(f"The kernel's log {self._path} cannot be opened: {error.strerror}.")
            return False
        # Its times are those of the monotonic clock, which stands still while the machine sleeps.
        self._lines = KernelLog(boot_time=now - time.monotonic())
        self._said = ""
        return True

    def _give_up(self, why: str) -> None:
        if why != self._said:
            log.warning("agent.kernel_log_away", reason=why)
        self._said = why
        self._not_before = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _records(self) -> Iterator[str]:
        assert self._fd is not None
        if stat.S_ISREG(os.fstat(self._fd).st_mode):
            yield from self._file_lines(self._fd)
        else:
            yield from self._ring_records(self._fd)

    def _ring_records(self, fd: int) -> Iterator[str]:
        """One read is one record; none is waited for."""
        assert self._place is not None
        self._drained = False
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(fd, _LARGEST_RECORD).decode("utf-8", errors="replace")
            except BlockingIOError:
                self._drained = True
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten before it was read; too large
                    continue
                raise
            if not record:
                return
            sequence = parse_line(record, now=0.0).sequence
            if sequence is not None:
                if sequence <= self._place.sequence:
                    continue
                self._place.sequence = sequence
            yield record

    def _file_lines(self, fd: int) -> Iterator[str]:
        assert self._place is not None
        here = os.fstat(fd)
        if self._place.inode != here.st_ino or here.st_size < self._place.offset:
            self._place.inode, self._place.offset = here.st_ino, 0  # another than was read last, or emptied
        yield from self._rest_of(fd)
        if not self._drained or not self._is_rotated(here.st_ino):
            return
        self._fd = self._open_log(self._path)
        os.close(fd)
        self._place.inode, self._place.offset = os.fstat(self._fd).st_ino, 0
        yield from self._rest_of(self._fd)

    def _rest_of(self, fd: int) -> Iterator[str]:
        """The whole lines from its place on, as many as one look takes."""
        assert self._place is not None
        os.lseek(fd, self._place.offset, os.SEEK_SET)
        data = os.read(fd, _MOST_BYTES)
        self._drained = len(data) < _MOST_BYTES
        whole, newline, rest = data.rpartition(b"\n")
        if not newline and not self._drained:
            self._place.offset += len(rest)  # no line of the kernel's is so long: what comes after it is read
            return
        self._place.offset += len(whole) + len(newline)
        yield from whole.decode("utf-8", errors="replace").splitlines()

    def _is_rotated(self, inode: int) -> bool:
        try:
            return self._path.stat().st_ino != inode
        except FileNotFoundError:
            return False  # moved away, and the new one is not there yet

    def _load(self) -> _Place:
        place = read_file(self._place_path, _Place)
        if place is None:
            return _Place(boot_id=self._boot_id)
        self._resumed = True
        if place.boot_id != self._boot_id:  # the kernel counts anew; a file goes on
            place.boot_id, place.sequence = self._boot_id, -1
        return place

    def _save(self) -> None:
        if self._unsaved and self._place is not None:
            with contextlib.suppress(OSError):
                replace_file(self._place_path, msgspec.json.encode(self._place))
                self._unsaved = False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

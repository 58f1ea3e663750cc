"""What dead processes left in their spools: whoever gets the lock of one takes its rows over."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import structlog

from gateway.relay.frames import FrameKind, decode_frames
from gateway.relay.plan import Outcome, UsageSource
from gateway.relay.spool import DRAFT_PREFIX, LOCK, SUFFIX
from tenants.usage import OpenRow, UsageRow, decode_open, decode_row

_DRAFT_SECONDS: Final = 3600.0

logger = structlog.get_logger(__name__)


class DeadSpool:
    """The spool of a process that is gone, locked by this one."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.process_id = UUID(folder.name)
        self._lock = lock

    def rows(self) -> Iterator[UsageRow]:
        """Its rows, then one with the outcome `lost` for each request that was open when it died.

        Reads past nothing that is damaged: a torn tail is what a crash leaves, the rest is logged.
        """
        opens: dict[UUID, OpenRow] = {}
        last_sequence = 0
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            data = path.read_bytes()
            end = 0
            for frame in decode_frames(data):
                end = frame.end
                try:
                    if frame.kind is FrameKind.OPEN:
                        opened = decode_open(frame.payload)
                        opens[opened.id] = opened
                        continue
                    row = decode_row(frame.payload)
                except msgspec.DecodeError as error:
                    logger.error("spool_frame_unreadable", path=str(path), at=frame.start, error=str(error))
                    continue
                opens.pop(row.id, None)
                last_sequence = row.sequence
                yield row
            if data[end:].strip(b"\0"):
                logger.warning("spool_tail_torn", path=str(path), at=end)
        for opened in opens.values():
            last_sequence += 1
            yield lost_row(opened, self.process_id, last_sequence)

    def remove(self) -> None:
        """Delete it: everything in it is kept elsewhere now."""
        # The lock file goes first: who opened it before finds it gone after locking it.
        (self.folder / LOCK).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def release(self) -> None:
        """Leave it to the next one."""
        os.close(self._lock)


def lost_row(opened: OpenRow, process_id: UUID, sequence: int) -> UsageRow:
    """The row of a request whose process died before it could say how it ended."""
    return UsageRow(
        id=opened.id,
        process_id=process_id,
        sequence=sequence,
        tenant_id=opened.tenant_id,
        key_id=opened.key_id,
        model=opened.model,
        door=opened.door,
        api=opened.api,
        streamed=opened.streamed,
        started_at=opened.started_at,
        outcome=Outcome.LOST,
        status=0,
        usage_source=UsageSource.NONE,
        subject_id=opened.subject_id,
        reserved_input=opened.reserved_input,
        reserved_output=opened.reserved_output,
        reserved_micros=opened.reserved_micros,
    )


def claim_dead_spools(parent: Path) -> Iterator[DeadSpool]:
    """The spools under `parent` whose owners are gone, each locked for the caller, who removes or releases it."""
    if not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if folder.name.startswith(DRAFT_PREFIX):
            _remove_abandoned(folder)
            continue
        try:
            UUID(folder.name)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # Spools appear whole, with their lock: without one, whoever was removing it died on the way.
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except (ValueError, NotADirectoryError):
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if not (folder / LOCK).exists():  # another one finished with it between our open and our lock
            os.close(lock)
            continue
        yield DeadSpool(folder, lock)


def _remove_abandoned(draft: Path) -> None:
    """A process died while it made its spool; nothing was in it yet."""
    try:
        if time.time() - draft.stat().st_mtime > _DRAFT_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)
    except FileNotFoundError:
        pass  # it has its name now

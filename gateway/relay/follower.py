"""Keeps a snapshot up to date: polls epochs, applies deltas, resolves keys that are asked for.

All reads run on one thread of their own, so that a slow database never holds the event loop.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import structlog

from core.clock import Clock
from core.ending import end_tasks
from core.errors import SnapshotStale
from core.telemetry import metrics
from gateway.relay.rows import KEYS, SECTIONS, Row, SnapshotSource, SourceUnavailable
from gateway.relay.snapshot import Snapshot

logger = structlog.get_logger(__name__)

T = TypeVar("T")

AWAY_AFTER_SECONDS: Final = 1.0
CHANGES_PER_TURN: Final = 500
_READ_DEADLINE_SECONDS: Final = 2.0
_LOAD_DEADLINE_SECONDS: Final = 30.0
_KEYS_PER_READ: Final = 1_000
_PENDING_CAP: Final = 5_000
_FIRST_LOAD_SECONDS: Final = 5.0


class _Lookup:
    """Keys that are read together, and everyone who waits for them: one event costs less than a future for each key."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.done = asyncio.Event()
        self.error: SourceUnavailable | None = None


class Follower:
    """Follows the sections of a SnapshotSource.

    `poll_seconds`: how often epochs are asked for; `stale_seconds`: how long the snapshot may be served
    after the database was last read.
    """

    def __init__(
        self, source: SnapshotSource, snapshot: Snapshot, *, clock: Clock, poll_seconds: float, stale_seconds: float
    ) -> None:
        self.snapshot = snapshot
        self._source = source
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._stale_seconds = stale_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshot")
        self._polling = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._loaded = asyncio.Event()
        self._read_at: float | None = None
        self._lookups: deque[_Lookup] = deque()  # the first is being read, the others are to be
        self._open: _Lookup | None = None  # takes more keys
        self._pending: dict[str, _Lookup] = {}  # the same by digest
        self._reloading: tuple[Snapshot, int] | None = None  # keys while they are read anew, and as of which epoch
        self._tasks: set[asyncio.Task[None]] = set()
        self._resolver: asyncio.Task[None] | None = None
        self._complained = False

    async def start(self) -> None:
        """Begin to follow; waits a moment for the first load, but starts without it when it cannot be had."""
        self._spawn(self._follow())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), _FIRST_LOAD_SECONDS)

    async def stop(self) -> None:
        """End all reads and give the connection up."""
        await end_tasks(*self._tasks)
        self._give_up(SourceUnavailable("the process stops"))
        self._source.interrupt()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._source.close)
        self._thread.shutdown(wait=False)

    @property
    def away(self) -> bool:
        """Whether the database was not read for so long that its changes may be missing here."""
        return self._read_at is None or self._clock.monotonic() - self._read_at > AWAY_AFTER_SECONDS

    def check_fresh(self) -> None:
        """Raises SnapshotStale before the first load and once the snapshot is too old to serve."""
        if self.unready_reason() is not None:
            raise SnapshotStale(retry_after_seconds=5)

    def unready_reason(self) -> str | None:
        """Why requests cannot be served from the snapshot now, None when they can."""
        if self._read_at is None:
            return "the configuration was not loaded yet"
        if self._clock.monotonic() - self._read_at > self._stale_seconds:
            return "the configuration store is away for too long"
        return None

    def hasten(self, section: str, epoch: int) -> None:
        """A hint that a section reached an epoch: poll now, unless it is known or not followed."""
        if section in SECTIONS and epoch != self.snapshot.applied.get(section):
            self._wanted.set()

    async def resolve(self, digest: str) -> None:
        """Make the snapshot know this key, or know that there is none.

        One read serves all who wait. Raises SnapshotStale when the database cannot be asked.
        """
        if self.snapshot.knows(digest):
            return
        lookup = self._pending.get(digest) or self._ask_for(digest)
        await lookup.done.wait()
        if lookup.error is not None:
            raise SnapshotStale(retry_after_seconds=2) from lookup.error

    def _ask_for(self, digest: str) -> _Lookup:
        if len(self._pending) >= _PENDING_CAP:
            raise SnapshotStale("Too many unknown keys are being looked up.", retry_after_seconds=1)
        if self._open is None or len(self._open.digests) >= _KEYS_PER_READ:
            self._open = _Lookup()
            self._lookups.append(self._open)
        lookup = self._pending[digest] = self._open
        lookup.digests.append(digest)
        if self._resolver is None or self._resolver.done():
            self._resolver = self._spawn(self._resolve_pending())
            self._resolver.add_done_callback(self._resolver_ended)
        return lookup

    async def read_mark(self, process_id: UUID) -> int:
        """How far this process's usage is in the ledger. Raises SourceUnavailable."""
        return await self._read(partial(self._source.read_mark, process_id))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self) -> None:
        while True:
            try:
                await self.poll()
                self._complained = False
            except SourceUnavailable as error:
                if not self._complained:
                    logger.warning("snapshot_source_away", error=str(error))
                self._complained = True
            except Exception:
                # A defect of ours in one delta must not end the following: the section is read anew at the next poll,
                # and the snapshot's age says when it may be served no longer.
                logger.exception("snapshot_not_followed")
            metrics.snapshot_away.set(float(self.away))
            metrics.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._poll_seconds)
            self._wanted.clear()

    async def poll(self) -> None:
        """Read the epochs and apply what changed. Raises SourceUnavailable."""
        async with self._polling:
            asked_at = self._clock.monotonic()
            await self._bring_up(SECTIONS)
            self._read_at = asked_at
            self._loaded.set()

    async def _bring_up(self, sections: Sequence[str]) -> None:
        epochs = await self._read(self._source.read_epochs)
        for section in sections:
            newest, applied = epochs.get(section, 0), self.snapshot.applied.get(section)
            if applied is None or newest < applied:  # never loaded, or the database was set back
                await self._reload(section, newest)
            elif newest > applied:
                await self._catch_up(section, newest)

    async def _bring_up_before(self, section: str, *, read: int, newest: int) -> None:
        """Whoever wrote what was `read` of a section since its epoch was `newest` may have restricted it elsewhere.

        What restricts is in the sections before: none of it may be seen later than what it restricts.
        """
        if read > newest and section != SECTIONS[0]:
            await self._bring_up(SECTIONS[: SECTIONS.index(section)])

    async def _catch_up(self, section: str, newest: int) -> None:
        while True:
            after = self.snapshot.applied[section]
            changes = await self._read(partial(self._source.read_changes, section, after=after, limit=CHANGES_PER_TURN))
            if not changes and changes is not None:
                return
            if changes is None or [c.epoch for c in changes] != list(range(after + 1, after + 1 + len(changes))):
                await self._reload(section, newest)  # some were pruned
                return
            changed = {change.object_id for change in changes}
            wanted = self.snapshot.cached_key_ids(changed) if section == KEYS else list(changed)
            rows: Sequence[Row] = ()
            if wanted:
                loaded = await self._read(partial(self._source.load_objects, section, wanted))
                rows = loaded.rows
                await self._bring_up_before(section, read=loaded.epoch, newest=newest)
                newest = max(newest, loaded.epoch)
            self.snapshot.apply(section, changed, rows, through=changes[-1].epoch)
            if len(changes) < CHANGES_PER_TURN:
                return
            await asyncio.sleep(0)

    async def _reload(self, section: str, newest: int) -> None:
        loaded = await self._read(partial(self._source.load_section, section), deadline=_LOAD_DEADLINE_SECONDS)
        fresh = self.snapshot.begin_section(section)
        if section == KEYS:
            await self._reload_keys(fresh, loaded.epoch)
            return
        await self._bring_up_before(section, read=loaded.epoch, newest=newest)
        for start in range(0, len(loaded.rows), CHANGES_PER_TURN):
            fresh.apply(section, (), loaded.rows[start : start + CHANGES_PER_TURN])
            await asyncio.sleep(0)
        self._adopt(section, fresh, loaded.epoch, len(loaded.rows))

    async def _reload_keys(self, fresh: Snapshot, epoch: int) -> None:
        """Read all keys that are held anew, serving what was held until then: no good key is ever unknown.

        Those that are resolved meanwhile are put into both.
        """
        held = self.snapshot.key_ids()
        self._reloading = fresh, epoch
        try:
            for start in range(0, len(held), _KEYS_PER_READ):
                ids = held[start : start + _KEYS_PER_READ]
                loaded = await self._read(partial(self._source.load_objects, KEYS, ids))
                if loaded.epoch < epoch:
                    raise SourceUnavailable("the database was set back while it was read")
                fresh.apply(KEYS, (), loaded.rows)
        finally:
            self._reloading = None
        self._adopt(KEYS, fresh, epoch, len(held))
        if held:
            await self._catch_up(KEYS, epoch)  # changes of what was read first

    def _adopt(self, section: str, fresh: Snapshot, epoch: int, rows: int) -> None:
        self.snapshot.adopt_section(section, fresh, epoch)
        logger.info("snapshot_section_loaded", section=section, rows=rows, epoch=epoch)

    async def _resolve_pending(self) -> None:
        while self._lookups:
            lookup = self._lookups[0]
            if lookup is self._open:
                self._open = None
            try:
                await self._look_up(lookup.digests)
            except SourceUnavailable as error:
                lookup.error = error
            self._lookups.popleft()
            self._settle(lookup)

    async def _look_up(self, digests: Sequence[str]) -> None:
        found = await self._read(partial(self._source.find_keys, digests))
        while found.epoch < self._keys_epoch():  # read before a change that was applied meanwhile
            found = await self._read(partial(self._source.find_keys, digests))
            if found.epoch < self._keys_epoch():
                await self.poll()  # not again: the database was set back, and only a poll finds that out
        rows = {row.digest: row for row in found.rows}
        for digest in digests:
            self.snapshot.add_resolved(digest, rows.get(digest))
            if self._reloading is not None:
                self._reloading[0].add_resolved(digest, rows.get(digest))
        if any(self.snapshot.tenant(row.tenant_id) is None for row in found.rows):
            await self.poll()  # a key of a tenant that was made just now

    def _keys_epoch(self) -> int:
        """What is read of keys must not be older than that."""
        return self.snapshot.applied.get(KEYS, 0) if self._reloading is None else self._reloading[1]

    def _settle(self, lookup: _Lookup) -> None:
        for digest in lookup.digests:
            del self._pending[digest]
        lookup.done.set()

    def _give_up(self, error: SourceUnavailable) -> None:
        self._open = None
        while self._lookups:
            lookup = self._lookups.popleft()
            lookup.error = error
            self._settle(lookup)

    def _resolver_ended(self, task: asyncio.Task[None]) -> None:
        """Whatever it died of, nobody may wait for it for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("keys_not_resolved", exc_info=error)
        self._give_up(SourceUnavailable("keys could not be read"))

    async def _read(self, call: Callable[[], T], *, deadline: float = _READ_DEADLINE_SECONDS) -> T:
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._thread, call), deadline)
        except TimeoutError:
            self._source.interrupt()
            raise SourceUnavailable(f"no answer within {deadline} s") from None

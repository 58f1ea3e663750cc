"""A follower with a database that a test writes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from uuid import UUID, uuid4

from core.clock import ManualClock
from gateway.relay.follower import Follower
from gateway.relay.rows import (
    GRANTS,
    KEYS,
    SECTIONS,
    ChangedRow,
    KeyRow,
    Loaded,
    LoadedKeys,
    Row,
    SourceUnavailable,
    TenantRow,
)
from gateway.relay.snapshot import Snapshot

TENANT = uuid4()


class FakeSource:
    """A database that a test writes; counts what is asked of it."""

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(SECTIONS, 0)
        self.pruned = dict.fromkeys(SECTIONS, 0)
        self.rows: dict[str, dict[UUID, Row]] = {section: {} for section in SECTIONS}
        self.changes: dict[str, list[ChangedRow]] = {section: [] for section in SECTIONS}
        self.asked: list[str] = []
        self.away = False
        self.before_find: Callable[[], None] = lambda: None
        self.after_find: Callable[[], None] = lambda: None
        self.hold = threading.Event()
        self.hold.set()
        self.write(GRANTS, TenantRow(TENANT, "acme", True, ()))

    def write(self, section: str, row: Row) -> None:
        self.rows[section][row.id] = row
        self.bump(section, row.id)

    def delete(self, section: str, object_id: UUID) -> None:
        del self.rows[section][object_id]
        self.bump(section, object_id)

    def bump(self, section: str, object_id: UUID) -> None:
        self.epochs[section] += 1
        self.changes[section].append(ChangedRow(self.epochs[section], object_id))

    def prune(self, section: str) -> None:
        self.pruned[section] = self.epochs[section]
        self.changes[section].clear()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.hold.wait()
        if self.away:
            raise SourceUnavailable("away")

    def read_epochs(self) -> Mapping[str, int]:
        self._ask("epochs")
        return dict(self.epochs)

    def read_changes(self, section: str, *, after: int, limit: int) -> Sequence[ChangedRow] | None:
        self._ask(f"changes {section}")
        if self.pruned[section] > after:
            return None
        return [change for change in self.changes[section] if change.epoch > after][:limit]

    def load_section(self, section: str) -> Loaded:
        self._ask(f"section {section}")
        return Loaded(self.epochs[section], [] if section == KEYS else list(self.rows[section].values()))

    def load_objects(self, section: str, ids: Sequence[UUID]) -> Loaded:
        self._ask(f"objects {section} {len(ids)}")
        return Loaded(self.epochs[section], [self.rows[section][i] for i in ids if i in self.rows[section]])

    def find_keys(self, digests: Sequence[str]) -> LoadedKeys:
        self._ask(f"keys {len(digests)}")
        self.before_find()
        rows = [row for row in self.rows[KEYS].values() if isinstance(row, KeyRow) and row.digest in digests]
        found = LoadedKeys(self.epochs[KEYS], rows)
        self.after_find()
        return found

    def read_mark(self, process_id: UUID) -> int:
        self._ask("mark")
        return 7

    def close(self) -> None:
        self.asked.append("close")

    def interrupt(self) -> None:
        self.asked.append("interrupt")
        self.hold.set()


def a_key(digest: str = "d", key_id: UUID | None = None, *, revoked: bool = False, tenant: UUID = TENANT) -> KeyRow:
    return KeyRow(key_id or uuid4(), digest, tenant, frozenset({"infer"}), (), None, None, revoked)


@contextlib.contextmanager
def watching(source: FakeSource, look: Callable[[], None]) -> Iterator[None]:
    """`look` is called on the loop again and again, while each read is being made too."""
    loop, ask = asyncio.get_running_loop(), source._ask

    def looked(what: str) -> None:
        ask(what)
        seen = threading.Event()
        loop.call_soon_threadsafe(look)
        loop.call_soon_threadsafe(seen.set)
        seen.wait(5)

    source._ask = looked  # type: ignore[method-assign]
    try:
        yield
    finally:
        source._ask = ask  # type: ignore[method-assign]


class House:
    def __init__(self) -> None:
        self.source = FakeSource()
        self.clock = ManualClock()
        self.snapshot = Snapshot()
        self.follower = Follower(self.source, self.snapshot, clock=self.clock, poll_seconds=3600, stale_seconds=60)


@contextlib.asynccontextmanager
async def a_house() -> AsyncIterator[House]:
    """A follower that has loaded everything, and a source that is asked nothing yet."""
    house = House()
    await house.follower.start()
    house.source.asked.clear()
    yield house
    house.source.hold.set()
    await house.follower.stop()

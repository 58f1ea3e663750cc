"""Limits are published before routes (R110): whatever is written while a follower reads, no route is without them."""

import asyncio
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from core.clock import ManualClock
from gateway.relay.follower import Follower
from gateway.relay.plan import Endpoint
from gateway.relay.rows import ENDPOINTS, LIMITS, MODELS, SECTIONS, EndpointRow, LimitRow, ModelRow
from gateway.relay.snapshot import Snapshot
from tests.gateway.relay.following import TENANT, FakeSource, watching

MODEL, INSTANCE, LIMIT = uuid4(), uuid4(), uuid4()


def a_limit() -> LimitRow:
    return LimitRow(LIMIT, TENANT, False, None, "new", "requests", "day", 1, None, None, None, 0.0, "UTC")


def an_endpoint(instance: UUID = INSTANCE) -> EndpointRow:
    return EndpointRow(instance, MODEL, Endpoint(instance, uuid4(), "vllm", "127.0.0.1", 1, "", "new"))


class ChangingSource(FakeSource):
    """One transaction writes a limit, a model and its endpoint, just before the read of that number."""

    def __init__(self, before_read: int, *, prune: bool) -> None:
        super().__init__()
        self._reads_left, self._prune = before_read, prune
        self.armed = self.written = False

    def _ask(self, what: str) -> None:
        super()._ask(what)
        if not self.armed or self.written:
            return
        if self._reads_left == 0:
            self.write_at_once()
        self._reads_left -= 1

    def write_at_once(self) -> None:
        self.written = True
        self.write(LIMITS, a_limit())
        self.write(MODELS, ModelRow(MODEL, "new", None, 1))
        self.write(ENDPOINTS, an_endpoint())
        if self._prune:
            for section in (LIMITS, MODELS, ENDPOINTS):
                self.prune(section)


def nothing(source: FakeSource) -> None:
    """The poll finds nothing but what is written at once."""


def another_endpoint(source: FakeSource) -> None:
    source.write(ENDPOINTS, an_endpoint(uuid4()))


def the_same_endpoint(source: FakeSource) -> None:
    """It was stopping, and is told again: the change was written before, the row is as after the transaction."""
    source.bump(ENDPOINTS, INSTANCE)
    source.bump(MODELS, MODEL)


def set_back(source: FakeSource) -> None:
    """Sections are read anew, whole."""
    for section in (MODELS, ENDPOINTS):
        source.prune(section)
        source.write(section, ModelRow(uuid4(), "b", None, 1) if section == MODELS else an_endpoint(uuid4()))
        source.prune(section)


@pytest.mark.shows("R110")
@pytest.mark.parametrize("prune", [False, True], ids=["changes", "reload"])
@pytest.mark.parametrize("before", [nothing, another_endpoint, the_same_endpoint, set_back])
@pytest.mark.parametrize("first", [False, True], ids=["running", "first load"])
async def test_no_route_is_seen_before_the_limit_that_was_written_with_it(
    before: Callable[[FakeSource], None], prune: bool, first: bool
) -> None:
    missed: list[int] = []
    seen_with_both = 0
    for number in range(16):
        source, snapshot = ChangingSource(number, prune=prune), Snapshot()
        follower = Follower(source, snapshot, clock=ManualClock(), poll_seconds=3600, stale_seconds=60)

        def look(snapshot: Snapshot = snapshot, number: int = number) -> None:
            routed = snapshot.has_endpoint(INSTANCE) or snapshot.model("new") is not None
            if routed and not snapshot.limits(TENANT, None, "new"):
                missed.append(number)

        if not first:
            await follower.start()
        before(source)
        source.armed = True
        with watching(source, look):
            await follower.poll()
            look()
            if not source.written:
                source.write_at_once()
            await follower.poll()
            look()
        seen_with_both += snapshot.has_endpoint(INSTANCE) and bool(snapshot.limits(TENANT, None, "new"))
        await follower.stop()
        await asyncio.sleep(0)
    assert missed == []
    assert seen_with_both == 16


def test_what_restricts_comes_before_what_opens() -> None:
    assert SECTIONS.index(LIMITS) < SECTIONS.index(MODELS) < SECTIONS.index(ENDPOINTS)

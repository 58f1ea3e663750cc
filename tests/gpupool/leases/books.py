"""Books of made-up devices for tests, and stores that fail at the worst moment."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from core.clock import SystemClock
from gpupool.leases.base import Condition, LeaseStore, Operation, Outcome, StoreUnavailable
from gpupool.leases.devices import BookView, DeviceBook
from gpupool.policies.device_record import DeviceFacts, RecordedClaim, Standing, mend

NODE = UUID(int=1)


def device(number: int) -> UUID:
    return UUID(int=0x1000 + number)


def facts_of(number: int, *, boot: str = "first", size: int = 10, standing: Standing = Standing.OK) -> DeviceFacts:
    reason = "" if standing == Standing.OK else f"it is {standing}"
    return DeviceFacts(device(number), NODE, size, True, boot, standing, reason)


def a_book(store: LeaseStore, *, base: int = 0, guards: Sequence[Condition] = ()) -> DeviceBook:
    return DeviceBook(store, clock=SystemClock(), base=base, guards=guards)


async def settle(book: DeviceBook, facts: Sequence[DeviceFacts], recorded: Sequence[RecordedClaim] = ()) -> BookView:
    """Mend until there is nothing to mend, as a leader's looks do."""
    for _ in range(20):
        view = await book.read()
        fixes = mend(view.book, facts, recorded)
        if not fixes:
            return view
        await book.apply(view, fixes)
    raise AssertionError(f"never mended: {fixes}")


class Forgetful:
    """A store whose answers to writes are lost when told so: the write has happened, or has not."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.lose: str = ""  # before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        lose, self.lose = self.lose, ""
        if lose == "before":
            raise StoreUnavailable("the request was lost")
        outcome = await self._store.transact(conditions, operations)
        if lose == "after":
            raise StoreUnavailable("the answer was lost")
        return outcome

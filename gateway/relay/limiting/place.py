"""A process's place among those that share limits: it joins a generation of counters, reports and renews.

Reports go once a second, and at once near a limit. What the process holds and owes stands in the Book; the scripts are
behind the Store. What both sides do, and when, says gateway.relay.limiting.layout.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final
from uuid import UUID

import structlog

from core.clock import Clock
from gateway.relay.limiting.accounts import Account
from gateway.relay.limiting.book import Book, Saved
from gateway.relay.limiting.layout import CALENDAR, READY, RENEW_SECONDS, REPORT_COUNTERS, SPEND_SECONDS
from gateway.relay.limiting.scripts import JOIN, LEAVE, LOOK, REPORT
from gateway.relay.limiting.store import Store, StoreUnavailable
from gateway.relay.valkey import ValkeyClient

logger = structlog.get_logger(__name__)

ROTATION_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.25

_SPACING_SECONDS: Final = 0.005  # between reports, so that many settlements travel together
_FORGET_SECONDS: Final = 60.0
_OVER: Final = object()
_JOIN_DEADLINE_SECONDS: Final = 2.0
_JOIN_COUNTER_SECONDS: Final = 0.0005  # many times what a counter takes: who gives up has to begin anew
_LEAVE_DEADLINE_SECONDS: Final = 1.0


class State(Enum):
    """How the process stands to the counters."""

    JOINING = "joining"  # not yet, or to be declared anew
    JOINED = "joined"
    LOST = "lost"  # there are none: they are being rebuilt
    UNREACHABLE = "unreachable"


class Place:
    """Of one process, whose id is its spool's; only touched on the event loop."""

    def __init__(self, client: ValkeyClient, *, prefix: str, process_id: UUID, clock: Clock) -> None:
        self._store = Store(client, prefix=prefix, process_hex=process_id.hex)
        self._monotonic = clock.monotonic
        self._book = Book(wake=self._wake, valkey_now=self._valkey_now)
        self._offset = clock.now().timestamp() - clock.monotonic()
        self._state = State.JOINING
        self._generation = ""
        self._ready = False
        self._session = 0
        self._report = 0
        self._unsure: list[tuple[int, int, Saved]] = []  # (session, report, what it told): sent, not answered
        self._live = 1
        self._spend_until = float("-inf")
        self._renew_at = float("-inf")
        self._rotate_at = float("-inf")
        self._forget_at = float("-inf")
        self._forgetting: Iterator[None] | None = None
        self._reported_at = float("-inf")
        self._due = asyncio.Event()
        self._joined = asyncio.Event()
        self._urgent = False
        self._complained = False

    async def wait_joined(self, seconds: float) -> None:
        """Until requests may be admitted, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._joined.wait(), seconds)

    async def run(self) -> None:
        """Join, report and renew until cancelled."""
        while True:
            try:
                await self._turn()
            except Exception:  # a defect of ours: without this task nothing limited would be served any more
                logger.exception("limits_failed")
                self._fall(State.JOINING)
                await asyncio.sleep(LOOK_SECONDS)

    async def _turn(self) -> None:
        if not self._joined.is_set():
            if not await self.join():
                await asyncio.sleep(LOOK_SECONDS)
            return
        await self._pause()
        if not self._joined.is_set():
            return
        now = self._monotonic()
        rotate = now >= self._rotate_at
        if rotate:
            self._rotate_at = now + ROTATION_SECONDS
            if now >= self._forget_at:
                self._forget_at = now + _FORGET_SECONDS
                self._forgetting = self._forgetting or self._book.forget_unused()
        if self._forgetting is not None and next(self._forgetting, _OVER) is _OVER:
            self._forgetting = None
        self._urgent = False
        await self.tell(rotate=rotate)

    async def close(self) -> None:
        """Tell everything and give everything back; `run` must have been cancelled. Requests that run keep theirs."""
        if self._state is State.JOINED:
            await self.tell(rotate=False, everything=True)
        if self._state is State.JOINED:
            with contextlib.suppress(StoreUnavailable):
                await self._store.call(LEAVE, self._generation, self._session, deadline_seconds=_LEAVE_DEADLINE_SECONDS)
        self._fall(State.JOINING)

    async def _pause(self) -> None:
        """Until there is something to tell at once, or the next rotation."""
        loop = asyncio.get_running_loop()
        now = self._monotonic()
        self._due.clear()
        if self._urgent:
            delay = max(0.0, self._reported_at + _SPACING_SECONDS - now)
            await asyncio.sleep(min(delay, _SPACING_SECONDS))
            return
        due = min(self._rotate_at, self._renew_at)
        timer = loop.call_later(max(0.0, min(due - now, ROTATION_SECONDS)), self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()

    async def tell(self, *, rotate: bool, everything: bool = False) -> None:
        """Tell what is due; with `rotate` slices are adjusted, with `everything` given back. `run` calls it."""
        through = self._book.last_sequence
        accounts, records, saved = self._book.report(rotate=rotate, live=self._live, everything=everything)
        now = self._monotonic()
        self._reported_at = now
        if not records:
            if now >= self._renew_at:
                await self._send([], [], [], through, more=False)
            return
        # Those of periods come last, and so with the sequence that they are counted up to, unless they are many.
        order = sorted(range(len(records)), key=lambda index: accounts[index].kind == CALENDAR)
        accounts, records = [accounts[index] for index in order], [records[index] for index in order]
        saved = [saved[index] for index in order]
        start, periods = 0, sum(account.kind != CALENDAR for account in accounts)
        while start < len(records):
            end = min(start + REPORT_COUNTERS, periods if start < periods else len(records))
            part, last = slice(start, end), end == len(records)
            start = end
            if self._state is not State.JOINED:
                self._book.restore(saved[part])
            else:
                told = through if last else self._book.told
                more = not last and end > periods
                await self._send(accounts[part], records[part], saved[part], told, more=more)

    async def _send(
        self, accounts: list[Account], records: list[Any], saved: Saved, through: int, *, more: bool
    ) -> None:
        self._report += 1
        session, sent = self._session, self._monotonic()
        try:
            answer = await self._store.call(REPORT, self._generation, session, self._report, through, records, more)
        except StoreUnavailable as error:
            self._unsure.append((0, self._report, saved))
            self._fall(State.UNREACHABLE, str(error))
            return
        if answer[0] == "ok" and self._monotonic() - sent < SPEND_SECONDS:
            self._book.told = max(self._book.told, through)
            if self._state is State.JOINED:
                self._heard(answer, sent)
                self._book.apply(accounts, answer[3])
        elif answer[0] == "ok":
            self._fall(State.JOINING)
        else:
            self._book.restore(saved)
            self._void(answer[0])

    def _heard(self, answer: list[Any], sent: float) -> None:
        """An answer that also renewed the process's place."""
        self._live = max(1, answer[2])
        self._offset = float(answer[1]) - sent
        self._spend_until = max(self._spend_until, sent + SPEND_SECONDS)
        self._renew_at = sent + RENEW_SECONDS

    # Joining

    async def join(self) -> bool:
        """Take a place in the present generation; whether requests may be admitted now. `run` calls it."""
        try:
            return await self._declare()
        except StoreUnavailable as error:
            self._fall(State.UNREACHABLE, str(error))
            return False

    async def _declare(self) -> bool:
        sent = self._monotonic()
        seen = await self._store.call(LOOK, self._session + 1)
        if seen[0] != "ok":
            self._fall(State.LOST)
            return False
        _, moment, generation, state, self._session, joined, report, counted, swept = seen
        self._offset = float(moment) - sent
        anew = generation != self._generation
        ready = state == READY
        if not anew and not ready and not self._ready:
            return False  # declared, and still being rebuilt
        if not anew:
            for past_session, past_report, saved in self._unsure:
                if past_session > joined or past_report > report:
                    self._book.restore(saved)
        else:
            self._book.told = 0
        self._unsure.clear()
        self._spend_until = float("-inf")
        if self._state is State.UNREACHABLE:
            self._fall(State.JOINING)  # it is not: what is admitted from here on is asked for
        self._report = max(self._report, report)
        through = self._book.last_sequence
        records, saved = self._book.declare(
            counted=counted if ready else self._book.acknowledged,
            anew=anew or not self._ready,
            ready=ready,
            swept=swept == 1,
        )
        try:
            answer = await self._store.call(
                *(JOIN, generation, state, self._session, counted, through, records),
                deadline_seconds=_JOIN_DEADLINE_SECONDS + len(records) * _JOIN_COUNTER_SECONDS,
            )
        except StoreUnavailable:
            self._unsure.append((self._session, 0, saved))
            raise
        if answer[0] != "ok":
            self._book.restore(saved)
            if answer[0] == "lost":
                self._fall(State.LOST)
            return False
        self._generation, self._ready = generation, ready
        if not ready:
            self._state = State.LOST
            return False
        self._book.told = max(self._book.told, through)
        self._heard(answer, sent)
        self._state = State.JOINED
        self._rotate_at = sent + ROTATION_SECONDS
        if self._complained:
            logger.info("limits_joined", generation=generation)
        self._complained = False
        self._joined.set()
        return True

    def _void(self, word: str) -> None:
        """What was held is so no more: the generation is `lost`, or this process was `swept`."""
        self._spend_until = float("-inf")
        self._fall(State.LOST if word == "lost" else State.JOINING)

    def _fall(self, state: State, reason: str = "") -> None:
        """Out of JOINED, or from one reason to another."""
        self._state = state
        self._joined.clear()
        if state is State.LOST:
            self._spend_until = float("-inf")
        if state is not State.JOINING:
            self._book.told = 0  # perhaps to counters that are gone
        if state in (State.LOST, State.UNREACHABLE) and not self._complained:
            self._complained = True
            logger.warning("limits_unavailable", state=state.value, reason=reason)
        self._due.set()

    def _wake(self) -> None:
        self._urgent = True
        self._due.set()

    def _valkey_now(self) -> float:
        return self._monotonic() + self._offset

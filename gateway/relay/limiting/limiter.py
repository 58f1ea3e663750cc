"""The Limiter that all processes share: what to ask Valkey, when, and what to do when it does not answer.

`run` keeps the process's place: it joins a generation of counters, reports once a second and at once near a limit, and
renews. What it holds and owes stands in the Book; the scripts are behind the Store.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final
from uuid import UUID

import structlog

from core.clock import Clock
from core.errors import StateStoreUnavailable
from gateway.policies.slices import alone_share
from gateway.relay.limiting.accounts import ONE, Account, Plan, Units, units_of
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.limiting.book import Book, Held, Saved
from gateway.relay.limiting.headers import ratelimit_headers
from gateway.relay.limiting.layout import READY, RENEW_SECONDS, REPORT_COUNTERS, SPEND_SECONDS, STANDING
from gateway.relay.limiting.refusals import Refused, refusal
from gateway.relay.limiting.scripts import ACQUIRE, JOIN, LEAVE, LOOK, REPORT
from gateway.relay.limiting.store import Store, StoreUnavailable
from gateway.relay.rows import LimitRow
from gateway.relay.valkey import ValkeyClient

logger = structlog.get_logger(__name__)

ROTATION_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.25
RETRY_SECONDS: Final = (0.01, 0.03, 0.11)
"""After a refusal, for other processes to give back what lies idle."""

_QUIET_SECONDS: Final = 0.25
_SPACING_SECONDS: Final = 0.005  # between reports, so that many settlements travel together
_FORGET_SECONDS: Final = 60.0
_JOIN_WAIT_SECONDS: Final = 0.25
_JOIN_DEADLINE_SECONDS: Final = 2.0
_JOIN_COUNTER_SECONDS: Final = 0.0005  # many times what a counter takes: who gives up has to begin anew
_LEAVE_DEADLINE_SECONDS: Final = 1.0
_PERIOD_ATTEMPTS: Final = 20


class State(Enum):
    """How the process stands to the counters."""

    JOINING = "joining"  # not yet, or to be declared anew
    JOINED = "joined"
    LOST = "lost"  # there are none: they are being rebuilt
    UNREACHABLE = "unreachable"


class ValkeyLimiter:
    """See Limiter. `process_id` is the spool's; only touched on the event loop.

    `run` must be running, and beside it a Subscriber to `layout.recall_channel(prefix)` that calls `recalled`. The
    deadline of a call is the client's. `on_overrun` is told of units used beyond what was reserved.
    """

    def __init__(
        self,
        client: ValkeyClient,
        *,
        prefix: str,
        process_id: UUID,
        clock: Clock,
        on_overrun: Callable[[LimitRow, int], None] | None = None,
    ) -> None:
        self._store = Store(client, prefix=prefix, process_hex=process_id.hex)
        self._clock = clock
        self._monotonic = clock.monotonic
        self._on_overrun = on_overrun
        self._book = Book(wake=self._wake, valkey_now=self._valkey_now, on_overrun=self._overrun)
        self._accounts = self._book.accounts
        self._plans = self._accounts.plans
        self._open = self._book.open
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
        self._reported_at = float("-inf")
        self._due = asyncio.Event()
        self._joined = asyncio.Event()
        self._urgent = False
        self._asking: set[asyncio.Task[Held]] = set()
        self._complained = False

    # What requests call

    def reserve_now(self, limits: Sequence[LimitRow], bound: Charge) -> Held | None:
        """See Limiter."""
        now = self._monotonic()
        if now >= self._spend_until:
            return None
        plan = self._plans.get(tuple(map(id, limits)))
        if plan is None:
            return None
        at = now + self._offset
        if at >= plan.until:
            return None
        units = units_of(bound)
        for account, index in plan.entries:
            if units[index] > account.free:
                return None
        return self._book.take(plan, units, int(at))

    async def reserve(self, limits: Sequence[LimitRow], bound: Charge) -> Held:
        """See Limiter."""
        return await self._reserve(limits, units_of(bound), holding=False)

    async def hold(self, limits: Sequence[LimitRow]) -> Held:
        """Room for one held request under the limits of `held_requests` among these; raises as `reserve`.

        Settled with NOTHING and no sequence when it is held no more.
        """
        return await self._reserve(limits, ONE, holding=True)

    def acknowledged(self, sequence: int) -> None:
        """The ledger has every row of this process up to that one."""
        self._book.acknowledge(sequence)

    def recalled(self, name: str) -> None:
        """Another process lacks what may lie free here of that counter."""
        if self._book.recall(name):
            self._wake()

    # Reserving

    async def _reserve(self, limits: Sequence[LimitRow], units: Units, *, holding: bool) -> Held:
        task = asyncio.get_running_loop().create_task(self._ask(limits, units, holding))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_give_up)  # whether it is granted comes out later
            raise

    async def _ask(self, limits: Sequence[LimitRow], units: Units, holding: bool) -> Held:
        refusals = periods = 0
        waited = False
        while True:
            plan = self._plan(limits, holding)
            if not plan.entries:
                return self._book.take(plan, units, 0)
            if self._state is not State.JOINED or self._monotonic() >= self._spend_until:
                if self._state is State.JOINED:
                    self._fall(State.JOINING)
                if self._state is State.JOINING and not waited:
                    waited = True
                    await self._wait_joined()
                    continue
                return self._take_apart(plan, units)
            missing = plan.missing(units)
            if not any(missing):
                return self._book.take(plan, units, int(self._valkey_now()))
            session, sent = self._session, self._monotonic()
            recall = any(account.quiet_until <= sent for account in plan.accounts)
            try:
                answer = await self._store.call(
                    *(ACQUIRE, self._generation, session, recall, self._book.ask(plan, units, missing))
                )
            except StoreUnavailable as error:
                if session == self._session:
                    self._book.untake(plan, units, missing)
                    self._fall(State.UNREACHABLE, str(error))
                continue
            if session != self._session or self._state is not State.JOINED:
                continue  # declared anew meanwhile, without this
            if self._monotonic() - sent >= SPEND_SECONDS:
                self._fall(State.JOINING)
                continue
            word = answer[0]
            if word == "ok":
                self._heard(answer, sent)
                asked = [entry for entry, n in zip(plan.entries, missing, strict=True) if n]
                for (account, _), (left, extra) in zip(asked, answer[3], strict=True):
                    self._book.add_slice(account, left, extra)
                return self._book.granted(plan, units, int(float(answer[1])), missing)
            self._book.untake(plan, units, missing)
            if word == "no":
                self._heard(answer, sent)
                found = self._refused(plan, missing, answer[3])
                now = self._monotonic()
                hope = min(one.hope for one in found)
                attempts = len(RETRY_SECONDS) if hope == 2 else 1 if hope == 1 and recall else 0
                if not attempts and any(one.account.owes() for one in found):
                    attempts = 1
                    self._wake()
                if refusals >= attempts:
                    for one in found:
                        one.account.quiet_until = now + _QUIET_SECONDS
                    raise refusal(found, ratelimit_headers(plan.entries, self._valkey_now()))
                await asyncio.sleep(RETRY_SECONDS[refusals])
                refusals += 1
            elif word == "period":
                periods += 1
                self._offset = float(answer[1]) - sent
                if periods > _PERIOD_ATTEMPTS:
                    raise StateStoreUnavailable(retry_after_seconds=1)
                await asyncio.sleep(0.001 * periods)
            else:
                self._void(word)

    def _plan(self, limits: Sequence[LimitRow], holding: bool) -> Plan:
        now = self._valkey_now()
        plan = self._accounts.plan(limits, holding=holding)
        if plan is None or now >= plan.until:
            plan = self._accounts.make_plan(limits, now, holding=holding)
        return plan

    def _take_apart(self, plan: Plan, units: Units) -> Held:
        """Without asking: out of slices, and a part of what may run at once. Raises StateStoreUnavailable."""
        now = self._monotonic()
        for account, index in plan.entries:
            if account.kind == STANDING and self._state is State.UNREACHABLE and self._generation:
                if account.inflight + units[index] <= alone_share(account.amount, self._live):
                    continue
            elif now < self._spend_until and units[index] <= account.free:
                continue
            raise StateStoreUnavailable(retry_after_seconds=1)
        return self._book.take(plan, units, int(self._valkey_now()))

    def _refused(self, plan: Plan, missing: list[int], answers: list[list[Any]]) -> list[Refused]:
        asked = [(entry[0], n) for entry, n in zip(plan.entries, missing, strict=True) if n]
        found = []
        for index, left, used, held, reset, hope in answers:
            account, need = asked[index]
            account.left = left
            account.near = True
            settled = min(held, account.consumed)  # known here to be used, and told in a moment
            found.append(Refused(account, need, left, used + settled, held - settled, float(reset), hope))
        return found

    async def _wait_joined(self) -> None:
        self._wake()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._joined.wait(), _JOIN_WAIT_SECONDS)

    # Keeping the process's place

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
                self._book.forget_unused()
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
        for start in range(0, len(records), REPORT_COUNTERS):
            part = slice(start, start + REPORT_COUNTERS)
            last = start + REPORT_COUNTERS >= len(records)
            if self._state is not State.JOINED:
                self._book.restore(saved[part])
            else:
                told = through if last else self._book.told
                await self._send(accounts[part], records[part], saved[part], told, more=not last)

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

    def _overrun(self, account: Account, units: int) -> None:
        logger.error("limit_overrun", limit=str(account.limit.id), metric=account.limit.metric, units=units)
        if self._on_overrun is not None:
            self._on_overrun(account.limit, units)


def _give_up(task: "asyncio.Task[Held]") -> None:
    """Of a request that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().settle(NOTHING, 0)

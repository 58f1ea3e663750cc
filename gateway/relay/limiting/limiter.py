"""The Limiter that all processes share: what to ask Valkey for a request, and what to do when it does not answer."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from core.clock import Clock
from core.errors import StateStoreUnavailable
from gateway.policies.slices import alone_share
from gateway.relay.limiting.accounts import ONE, Plan, Units, units_of
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.limiting.book import Held
from gateway.relay.limiting.headers import ratelimit_headers
from gateway.relay.limiting.layout import SPEND_SECONDS, STANDING
from gateway.relay.limiting.place import Place, State
from gateway.relay.limiting.refusals import Refused, refusal
from gateway.relay.limiting.scripts import ACQUIRE
from gateway.relay.limiting.store import StoreUnavailable
from gateway.relay.rows import LimitRow
from gateway.relay.valkey import ValkeyClient

RETRY_SECONDS: Final = (0.01, 0.03, 0.11)
"""After a refusal, for other processes to give back what lies idle."""

_QUIET_SECONDS: Final = 0.25
_JOIN_WAIT_SECONDS: Final = 0.25
_PERIOD_ATTEMPTS: Final = 20


class ValkeyLimiter(Place):
    """See Limiter. `process_id` is the spool's; only touched on the event loop.

    `run` must be running, and beside it a Subscriber to `layout.recall_channel(prefix)` that calls `recalled`. The
    deadline of a call is the client's.
    """

    def __init__(self, client: ValkeyClient, *, prefix: str, process_id: UUID, clock: Clock) -> None:
        super().__init__(client, prefix=prefix, process_id=process_id, clock=clock)
        self._accounts = self._book.accounts
        self._plans = self._accounts.plans
        self._asking: set[asyncio.Task[Held]] = set()

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
                    self._wake()
                    await self.wait_joined(_JOIN_WAIT_SECONDS)
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


def _give_up(task: "asyncio.Task[Held]") -> None:
    """Of a request that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().settle(NOTHING, 0)

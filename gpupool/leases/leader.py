"""Leadership on a lease store: one holder, who stops itself before anybody else can be told to start."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from core.clock import Clock
from gpupool.leases.base import (
    Committed,
    CreatedAt,
    Delete,
    Grant,
    IsAbsent,
    LeaseNotFound,
    LeaseStore,
    Put,
    StoreUnavailable,
)
from gpupool.leases.fencing import Fence, Superseded

logger = structlog.get_logger(__name__)

_STOP_AT: Final = 0.8  # of the time to live, counted from before the renewal was sent
_RENEW_EACH: Final = 0.25
_ASK_EACH: Final = 0.25


def leader_key(name: str) -> str:
    return f"/leader/{name}"


class LeaderLease:
    """Campaigns for one name in the store and runs the work while it leads."""

    def __init__(self, store: LeaseStore, *, name: str, identity: str, ttl_seconds: float, clock: Clock) -> None:
        """`identity` says who leads, for people; `ttl_seconds` is how long a dead leader blocks the next."""
        self._store = store
        self._name = name
        self._key = leader_key(name)
        self._identity = identity
        self._ttl_seconds = ttl_seconds
        self._clock = clock

    async def run(self, work: Callable[[Fence], Awaitable[None]]) -> None:
        """Until cancelled: win, run `work` with the fence to write under, cancel it when leadership is in doubt.

        An error of `work` ends this with that error, after giving the leadership up.
        """
        while True:
            won = await self._campaign()
            if won is None:
                await asyncio.sleep(self._ttl_seconds * _ASK_EACH)
                continue
            fence, grant, deadline = won
            logger.info("leadership_won", name=self._name, revision=fence.revision, identity=self._identity)
            try:
                await self._lead(fence, grant, deadline, work)
            except Superseded as error:
                logger.warning("leadership_superseded", name=self._name, error=str(error))
            finally:
                await self._resign(fence, grant)
            logger.warning("leadership_lost", name=self._name, revision=fence.revision)

    async def _campaign(self) -> tuple[Fence, Grant, float] | None:
        try:
            if await self._store.get(self._key) is not None:
                return None
            asked_at = self._clock.monotonic()
            grant = await self._store.grant(self._ttl_seconds)
            outcome = await self._store.transact(
                [IsAbsent(self._key)], [Put(self._key, self._identity.encode(), grant.lease_id)]
            )
            if isinstance(outcome, Committed):
                return Fence(self._name, outcome.revision), grant, asked_at + self._ttl_seconds * _STOP_AT
            await self._store.revoke(grant.lease_id)
        except (StoreUnavailable, LeaseNotFound) as error:
            logger.warning("campaign_failed", name=self._name, error=str(error))
        return None

    async def _lead(
        self, fence: Fence, grant: Grant, deadline: float, work: Callable[[Fence], Awaitable[None]]
    ) -> None:
        working = asyncio.ensure_future(work(fence))
        keeping = asyncio.create_task(self._keep(grant, deadline))
        try:
            done, _ = await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                working.result()
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)

    async def _keep(self, grant: Grant, deadline: float) -> None:
        """Renew; returns as soon as the last renewal that was confirmed is too old to rely on."""
        while True:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, self._ttl_seconds * _RENEW_EACH))
            sent_at = self._clock.monotonic()
            renewal = asyncio.ensure_future(self._store.keep_alive(grant.lease_id))
            try:
                # Not awaited itself: a store that is slow to take a cancellation must not make this late.
                await asyncio.wait({renewal}, timeout=max(0.0, deadline - sent_at))
            finally:
                if not renewal.done():
                    renewal.cancel()
            if not renewal.done():
                return
            try:
                renewal.result()
            except LeaseNotFound:
                return
            except StoreUnavailable:
                continue
            deadline = sent_at + self._ttl_seconds * _STOP_AT

    async def _resign(self, fence: Fence, grant: Grant) -> None:
        """Make room at once for the next; where the store does not answer, the time to live does it."""
        try:
            async with asyncio.timeout(1.0):
                await self._store.transact([CreatedAt(self._key, fence.revision)], [Delete(self._key)])
                await self._store.revoke(grant.lease_id)
        except (StoreUnavailable, LeaseNotFound, TimeoutError):
            logger.info("resignation_not_delivered", name=self._name)

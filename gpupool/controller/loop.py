"""The controller: while it leads, it looks at the world whenever something changed and does what the policies say."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import structlog
from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections
from psycopg.errors import UndefinedColumn, UndefinedTable

from core.clock import Clock
from core.epochs import Section, current_epoch
from gpupool import services
from gpupool.controller.act import carry_out, unless_overtaken
from gpupool.controller.book import BookKeeper
from gpupool.controller.healing import keep_healing
from gpupool.controller.memory import keep_memory
from gpupool.controller.prober import Target, probe_all
from gpupool.controller.targets import list_attached_targets, list_silent_targets
from gpupool.controller.upkeep import keep_up
from gpupool.controller.world import list_connected_nodes, read_world
from gpupool.leases.base import Compacted, CreatedAt, LeaseStore, StoreUnavailable
from gpupool.leases.devices import GPU_PREFIX, DeviceBook
from gpupool.leases.fencing import Fence, Superseded, raise_fence
from gpupool.leases.leader import LeaderLease, leader_key
from gpupool.leases.liveness import list_live_nodes
from gpupool.leases.tokens import settle_base
from gpupool.policies.instance import State
from gpupool.policies.probe import Health, after_probe, probed_state
from gpupool.policies.reconcile import Plan, Rules, reconcile
from gpupool.reads.unleased import Unleased, list_unleased
from tenants.actor import SYSTEM

logger = structlog.get_logger(__name__)

T = TypeVar("T")

LEADER_NAME: Final = "controller"
POLL_SECONDS: Final = 0.25
LIVENESS_POLL_SECONDS: Final = 1.0
RESYNC_SECONDS: Final = 10.0
PROBE_EACH_SECONDS: Final = 2.0


class Controller:
    """One of several; the one that holds the leader lease works, the others wait."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        lease_seconds: float,
        rules: Rules,
        clock: Clock,
        poll_seconds: float = POLL_SECONDS,
        probe_seconds: float = PROBE_EACH_SECONDS,
        resync_seconds: float = RESYNC_SECONDS,
    ) -> None:
        """`lease_seconds` is how long a dead controller keeps the next one waiting."""
        self._store = store
        self._rules = rules
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._probe_seconds = probe_seconds
        self._resync_seconds = resync_seconds
        self._leader = LeaderLease(store, name=LEADER_NAME, identity=identity, ttl_seconds=lease_seconds, clock=clock)
        self._health: dict[UUID, Health] = {}  # of attached engines, by their probes
        self._braked = False
        self._unleased: list[Unleased] = []
        self._stirred = asyncio.Event()  # somebody else has written in the store

    async def run(self) -> None:
        """Until cancelled."""
        await self._leader.run(self._work)

    async def _work(self, won: Fence) -> None:
        self._health.clear()
        base = await self._settle_base()
        fence = Fence(won.name, base + won.revision)
        await self._raise_fence(fence)
        # In every transaction of the store too: whoever was replaced there can write there no more.
        guards = [CreatedAt(leader_key(LEADER_NAME), won.revision)]
        book = DeviceBook(self._store, clock=self._clock, base=base, guards=guards)
        keeper = BookKeeper(book, fence=fence, in_thread=_in_thread)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_reconciling(fence, keeper), name="reconcile")
                group.create_task(self._keep_watching(keeper), name="watch")
                group.create_task(self._keep_probing(fence), name="probe")
                group.create_task(self._keep_bringing_back(fence), name="bring back")
                healing = keep_healing(
                    fence, clock=self._clock, in_thread=_in_thread, mass_failure=lambda: self._braked
                )
                group.create_task(healing, name="heal")
                upkeep = keep_up(
                    fence,
                    clock=self._clock,
                    in_thread=_in_thread,
                    failed_grace_seconds=self._rules.failed_grace_seconds / 2,
                )
                group.create_task(upkeep, name="upkeep")
                memory = keep_memory(fence, clock=self._clock, in_thread=_in_thread)
                group.create_task(memory, name="memory")
        except BaseExceptionGroup as errors:
            if errors.subgroup(Superseded) is not None:
                raise Superseded(LEADER_NAME) from errors
            raise

    async def _settle_base(self) -> int:
        while True:
            try:
                return await settle_base(self._store)
            except (Error, StoreUnavailable) as error:
                if isinstance(error.__cause__, (UndefinedTable, UndefinedColumn)):
                    raise error.__cause__ from error  # no waiting makes it migrated
                logger.warning("controller_cannot_see", error=str(error))
                await asyncio.sleep(self._poll_seconds)

    async def _raise_fence(self, fence: Fence) -> None:
        """Before the first look: what an earlier leader still has under way is refused from here on."""
        while True:
            try:
                return await _in_thread(lambda: raise_fence(fence))
            except Error as error:
                logger.warning("controller_cannot_see", error=str(error))
                await asyncio.sleep(self._poll_seconds)

    # Reconciling

    async def _keep_watching(self, keeper: BookKeeper) -> None:
        """Look anew at whatever others change in the store; after a gap, as it may have been missed, in any case."""
        while True:
            try:
                snapshot = await self._store.range(GPU_PREFIX)
                self._stirred.set()
                async for event in self._store.watch(GPU_PREFIX, after_revision=snapshot.revision):
                    if not keeper.wrote(event.revision):
                        self._stirred.set()
            except Compacted:
                logger.info("store_watch_compacted")
            except StoreUnavailable as error:
                logger.info("store_watch_broken", error=str(error))
            await asyncio.sleep(self._poll_seconds)

    async def _keep_reconciling(self, fence: Fence, keeper: BookKeeper) -> None:
        epoch, live, blind = -1, frozenset[UUID](), False
        checked_at, looked_at, swept_at, due_at = float("-inf"), float("-inf"), float("-inf"), float("inf")
        while True:
            now = self._clock.monotonic()
            try:
                newest = await _in_thread(lambda: current_epoch(Section.POOL))
                changed = self._stirred.is_set()
                self._stirred.clear()
                if now - checked_at >= LIVENESS_POLL_SECONDS:
                    changed, checked_at = changed or await list_live_nodes(self._store) != live, now
                if newest != epoch or changed or now >= due_at or now - looked_at >= self._resync_seconds:
                    plan, live = await self._reconcile_once(fence, keeper)
                    epoch, looked_at = newest, now
                    wall = self._clock.now().timestamp()
                    due_at = float("inf") if plan.wake_at is None else now + max(0.0, plan.wake_at - wall)
                if now - swept_at >= self._resync_seconds:  # also where so much happens that no look is a resync
                    await self._sweep(fence)
                    swept_at = now
                blind = False
            except (Error, StoreUnavailable) as error:
                # PostgreSQL is away: engines go on serving, and what is due is done when it is back.
                if not blind:
                    logger.warning("controller_cannot_see", error=str(error))
                blind = True
            await asyncio.sleep(self._poll_seconds)

    async def _sweep(self, fence: Fence) -> None:
        """Against reality: claims without a holder end, processes without a claim are reported."""
        await _in_thread(lambda: services.sweep_claims(actor=SYSTEM, fence=fence))
        unleased = await _in_thread(list_unleased)
        if unleased != self._unleased:
            logger.warning("running_without_a_claim", devices=[str(one) for one in unleased])
        self._unleased = unleased

    async def _reconcile_once(self, fence: Fence, keeper: BookKeeper) -> tuple[Plan, frozenset[UUID]]:
        """One look and all that follows from it; returns the plan and the nodes that were alive."""
        connected = await _in_thread(list_connected_nodes)
        live = (await keeper.look()).live_nodes
        silent = await _in_thread(lambda: list_silent_targets(live, State.READY))
        verdicts = await probe_all(silent)
        answering = frozenset(instance_id for instance_id, verdict in verdicts.items() if verdict.answered)
        world = await _in_thread(
            lambda: read_world(now=self._clock.now(), connected=connected, live_nodes=live, answering=answering)
        )
        plan = reconcile(world, self._rules)
        if plan.mass_failure != self._braked:
            self._braked = plan.mass_failure
            logger.warning("mass_failure_brake", on=plan.mass_failure, live_nodes=len(live))
        for action in plan.actions:
            logger.info("action", action=type(action).__name__, detail=str(action))
            await carry_out(action, fence=fence, keeper=keeper, in_thread=_in_thread)
        return plan, live

    async def _keep_bringing_back(self, fence: Fence) -> None:
        """Engines of silent nodes that were unknown and answer again.

        Apart from reconciling: of a machine that is off, every probe waits to its deadline, for as long as it is off.
        """
        reason = "Its node is silent, but it answers."
        while True:
            with contextlib.suppress(Error, StoreUnavailable):
                live = await list_live_nodes(self._store)
                targets = await _in_thread(partial(list_silent_targets, live, State.UNKNOWN))
                for instance_id, verdict in (await probe_all(targets)).items():
                    if verdict.answered:
                        await self._write_probe(instance_id, healthy=True, reason=reason, fence=fence)
            await asyncio.sleep(self._probe_seconds)

    # Probing attached engines

    async def _keep_probing(self, fence: Fence) -> None:
        while True:
            with contextlib.suppress(Error):
                targets = await _in_thread(list_attached_targets)
                await self._probe_attached(targets, fence)
            await asyncio.sleep(self._probe_seconds)

    async def _probe_attached(self, targets: list[Target], fence: Fence) -> None:
        verdicts = await probe_all(targets)
        before = self._health
        self._health = {}
        for target in targets:
            verdict = verdicts[target.instance_id]
            health = after_probe(before.get(target.instance_id, Health()), verdict.result)
            self._health[target.instance_id] = health
            following = probed_state(target.state, verdict.result, health)
            if following is not None or verdict.reason != target.reason:
                healthy = (following or target.state) == State.READY
                await self._write_probe(target.instance_id, healthy=healthy, reason=verdict.reason, fence=fence)

    async def _write_probe(self, instance_id: UUID, *, healthy: bool, reason: str, fence: Fence) -> None:
        def write() -> None:
            services.set_probed_state(instance_id, healthy=healthy, reason=reason, actor=SYSTEM, fence=fence)

        await _in_thread(lambda: unless_overtaken(write, what="probe"))


async def _in_thread(call: Callable[[], T]) -> T:
    """Database work, off the loop: the leader lease is renewed there and must not wait for a slow query."""

    def guarded() -> T:
        close_old_connections()
        return call()

    return await sync_to_async(guarded)()

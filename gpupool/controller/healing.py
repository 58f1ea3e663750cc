"""The leader's healing: looks at what agents noticed, decides, and carries it out under the fence."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from core.clock import Clock
from core.refusals import Conflict
from gpupool.controller.act import unless_overtaken
from gpupool.controller.looking import InThread, keep_looking
from gpupool.leases.fencing import Fence
from gpupool.policies.healing import decide
from gpupool.policies.healing_world import Decision, Plan
from gpupool.reads import healing as reads
from gpupool.services import device_isolation
from gpupool.services import healing as services
from gpupool.services.memory_modes import set_memory_modes
from tenants.actor import SYSTEM

logger = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
RESYNC_SECONDS: Final = 5.0
"""Without an event: for what drivers ask for, actions that are overdue, and devices that come back."""


async def keep_healing(
    fence: Fence, *, clock: Clock, in_thread: InThread, mass_failure: Callable[[], bool], seconds: float = LOOK_SECONDS
) -> None:
    """Until cancelled. Raises Superseded."""
    looked_at = float("-inf")

    async def look() -> None:
        nonlocal looked_at
        await in_thread(partial(set_memory_modes, actor=SYSTEM, fence=fence))
        due = clock.monotonic() - looked_at >= RESYNC_SECONDS
        if due or await in_thread(reads.anything_undecided):
            await in_thread(partial(heal_once, fence, clock=clock, mass_failure=mass_failure()))
            looked_at = clock.monotonic()

    await keep_looking(look, event="healing_cannot_see", seconds=seconds)


def heal_once(fence: Fence | None, *, clock: Clock, mass_failure: bool = False) -> Plan:
    """One look and all that follows from it. Raises Superseded."""
    world = reads.read_healing_world(now=clock.now(), mass_failure=mass_failure)
    plan = decide(world, reads.healing_rules())
    for action_id in plan.overdue:
        services.end_overdue_action(action_id, actor=SYSTEM, fence=fence)
    for noted in plan.noted:
        services.note_events(noted.events, noted.reason, fence=fence)
    for held in plan.held:
        services.hold_events(held.events, held.reason, fence=fence)
    for decision in plan.decisions:
        logger.warning("healing_action", action=str(decision.remedy), dry_run=decision.dry_run, reason=decision.reason)
        unless_overtaken(partial(_begin, decision, fence), what=decision.remedy)
    for back in plan.give_back:
        logger.info("device_given_back", device=str(back.device_id))
        unless_overtaken(partial(_give_back, back.device_id, back.reason, fence), what="give back")
    return plan


def _begin(decision: Decision, fence: Fence | None) -> None:
    services.begin_action(decision, actor=SYSTEM, fence=fence)


def _give_back(device_id: UUID, reason: str, fence: Fence | None) -> None:
    with contextlib.suppress(Conflict):  # something was begun meanwhile
        device_isolation.give_back_device(device_id, reason=reason, actor=SYSTEM, fence=fence)

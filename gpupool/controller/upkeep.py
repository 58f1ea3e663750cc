"""The leader's upkeep of what is beside the replicas: the tenants' pool, and versions that give way."""

from functools import partial
from typing import Final, assert_never

import structlog

from core.clock import Clock
from gpupool import services
from gpupool.controller.act import unless_overtaken
from gpupool.controller.looking import InThread, keep_looking
from gpupool.leases.fencing import Fence
from gpupool.policies.asleep_pool import ClaimAgain, End, LetSleep, PoolAction, keep_pool
from gpupool.policies.rollback import RollBack, decide_rollback
from gpupool.reads import instances as reads
from gpupool.services.resizing import NoRoom, claim_again
from tenants.actor import SYSTEM

logger = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0


async def keep_up(
    fence: Fence, *, clock: Clock, in_thread: InThread, failed_grace_seconds: float, seconds: float = LOOK_SECONDS
) -> None:
    """Until cancelled. Raises Superseded.

    `failed_grace_seconds` is when a failed version gives way; before its instance is replaced, which hides why.
    """

    async def look() -> None:
        await in_thread(partial(keep_up_once, fence, clock=clock, failed_grace_seconds=failed_grace_seconds))

    await keep_looking(look, event="upkeep_cannot_see", seconds=seconds)


def keep_up_once(fence: Fence | None, *, clock: Clock, failed_grace_seconds: float) -> None:
    """One look and all that follows from it. Raises Superseded."""
    now = clock.now()
    world = reads.read_pool()
    for action in keep_pool(
        world.pooled, world.waiting, idle_seconds=world.idle_seconds, now=now.timestamp(), rules=world.rules
    ):
        unless_overtaken(partial(_do, action, fence), what=type(action).__name__)
    for versions in reads.read_candidates().values():
        for found in decide_rollback(versions, now=now.timestamp(), grace_seconds=failed_grace_seconds):
            logger.warning("version_rolled_back", version=str(found.version_id), reason=found.reason)
            unless_overtaken(partial(_roll_back, found, fence), what="RollBack")


def _do(action: PoolAction, fence: Fence | None) -> None:
    match action:
        case LetSleep(instance_id=instance_id, reason=reason):
            services.sleep_instance(instance_id, actor=SYSTEM, reason=reason, staged=True, fence=fence)
        case ClaimAgain(instance_id=instance_id, victim=victim):
            refused = claim_again(instance_id, actor=SYSTEM, fence=fence)
            if isinstance(refused, NoRoom) and victim is not None:
                reason = "It was idle, and another tenant's instance wakes in its place."
                services.sleep_instance(victim, actor=SYSTEM, reason=reason, staged=True, fence=fence)
        case End(instance_id=instance_id, reason=reason):
            services.stop_instance(instance_id, actor=SYSTEM, reason=reason, fence=fence)
        case _:
            assert_never(action)


def _roll_back(found: RollBack, fence: Fence | None) -> None:
    services.roll_back_version(found.version_id, found.to_version_id, reason=found.reason, actor=SYSTEM, fence=fence)

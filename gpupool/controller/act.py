"""Carries out what the reconcile policy decided, each action by one service under the leader's fence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import assert_never

import structlog
from django.core.exceptions import ObjectDoesNotExist

from gpupool import services
from gpupool.controller.book import BookKeeper
from gpupool.controller.looking import InThread
from gpupool.leases.fencing import Fence
from gpupool.policies.instance import IllegalTransition
from gpupool.policies.reconcile import Action, Explain, MarkNodeUnreachable, MarkUnknown, Place, Request, Stop
from tenants.actor import SYSTEM
from tenants.services import InvalidInput

logger = structlog.get_logger(__name__)


async def carry_out(action: Action, *, fence: Fence, keeper: BookKeeper, in_thread: InThread) -> None:
    """Do it. What has changed since the decision is left alone: the next look decides anew.

    Raises Superseded, StoreUnavailable, django.db.Error.
    """
    what = type(action).__name__
    if isinstance(action, Place):
        with passing_over(what):
            await keeper.place(action.instance_id, action.device_ids)
    else:
        written = action
        await in_thread(lambda: unless_overtaken(lambda: _do(written, fence), what=what))


def unless_overtaken(write: Callable[[], None], *, what: str) -> None:
    """Do a write that was decided on what was read before; pass it over where that is not so any more."""
    with passing_over(what):
        write()


@contextmanager
def passing_over(what: str) -> Iterator[None]:
    """What was decided about is not so any more: nothing is done."""
    try:
        yield
    except (ObjectDoesNotExist, IllegalTransition, InvalidInput) as error:
        logger.info("action_overtaken", action=what, error=str(error))


_Written = MarkNodeUnreachable | MarkUnknown | Request | Explain | Stop


def _do(action: _Written, fence: Fence) -> None:
    match action:
        case MarkNodeUnreachable(node_id=node_id, reason=reason):
            services.mark_node_unreachable(node_id, reason=reason, actor=SYSTEM, fence=fence)
        case MarkUnknown(instance_id=instance_id, reason=reason):
            services.mark_instance_unknown(instance_id, reason=reason, actor=SYSTEM, fence=fence)
        case Request(version_id=version_id, reason=reason):
            services.request_instance(version_id, actor=SYSTEM, reason=reason, fence=fence)
        case Explain(instance_id=instance_id, reason=reason):
            services.explain_waiting(instance_id, reason, actor=SYSTEM, fence=fence)
        case Stop(instance_id=instance_id, reason=reason):
            services.stop_instance(instance_id, actor=SYSTEM, reason=reason, fence=fence)
        case _:
            assert_never(action)

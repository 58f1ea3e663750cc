"""Carries out what the reconcile policy decided, each action by one service under the leader's fence."""

from collections.abc import Callable
from typing import assert_never

import structlog
from django.core.exceptions import ObjectDoesNotExist

from gpupool import services
from gpupool.leases.fencing import Fence
from gpupool.policies.instance import IllegalTransition
from gpupool.policies.lease import Refused
from gpupool.policies.reconcile import Action, Explain, MarkNodeUnreachable, MarkUnknown, Place, Request, Stop
from tenants.actor import SYSTEM
from tenants.services import InvalidInput

logger = structlog.get_logger(__name__)


def carry_out(action: Action, *, fence: Fence) -> None:
    """Do it. What has changed since the decision is left alone: the next look decides anew. Raises Superseded."""
    unless_overtaken(lambda: _do(action, fence), what=type(action).__name__)


def unless_overtaken(write: Callable[[], None], *, what: str) -> None:
    """Do a write that was decided on what was read before; pass it over where that is not so any more."""
    try:
        write()
    except (ObjectDoesNotExist, IllegalTransition, InvalidInput) as error:
        logger.info("action_overtaken", action=what, error=str(error))


def _do(action: Action, fence: Fence) -> None:
    match action:
        case MarkNodeUnreachable(node_id=node_id, reason=reason):
            services.mark_node_unreachable(node_id, reason=reason, actor=SYSTEM, fence=fence)
        case MarkUnknown(instance_id=instance_id, reason=reason):
            services.mark_instance_unknown(instance_id, reason=reason, actor=SYSTEM, fence=fence)
        case Request(version_id=version_id, reason=reason):
            services.request_instance(version_id, actor=SYSTEM, reason=reason, fence=fence)
        case Place(instance_id=instance_id, device_ids=device_ids):
            outcome = services.claim_and_place(instance_id, *device_ids, actor=SYSTEM, fence=fence)
            if isinstance(outcome, Refused):
                logger.info("claim_refused", instance=str(instance_id), reason=outcome.reason)
        case Explain(instance_id=instance_id, reason=reason):
            services.explain_waiting(instance_id, reason, actor=SYSTEM, fence=fence)
        case Stop(instance_id=instance_id, reason=reason):
            services.stop_instance(instance_id, actor=SYSTEM, reason=reason, fence=fence)
        case _:
            assert_never(action)

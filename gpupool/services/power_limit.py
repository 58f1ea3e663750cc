"""A GPU's power limit, as a person wants it: a row for its node's agent, which tells how it ended."""

from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from core.refusals import InvalidInput
from gpupool.models import Device, HealingAction, HealingActionState
from gpupool.policies.remedy import LIMIT_POWER
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit

LEAST_WATTS: Final = 1
MOST_WATTS: Final = 10_000
"""Of any GPU: what this one takes is its driver's to say, in the action's outcome."""


@transaction.atomic
def limit_power(device_id: UUID, *, watts: int, reason: str, actor: Actor) -> HealingAction:
    """Ask the device's node for it. A dry run until hardware actions are switched on, as with resets.

    A wish that nobody has begun on is replaced. Raises Device.DoesNotExist, InvalidInput.
    """
    device = Device.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=device_id)
    if not LEAST_WATTS <= watts <= MOST_WATTS:
        raise InvalidInput("watts", f"A power limit is {LEAST_WATTS} to {MOST_WATTS} watts.")
    if device.kind != "gpu" or device.vendor != "nvidia":
        raise InvalidInput("device", "Only the power of NVIDIA's GPUs can be limited.")
    if device.partition_of:
        raise InvalidInput("device", "It is a part of a GPU: limit the power of the whole.")
    changes = Changes()
    _replace(device, actor=actor)
    action = HealingAction.objects.create(
        node=device.node,
        device=device,
        action=LIMIT_POWER,
        reason=reason[:1000],
        data={"boot_id": device.node.boot_id, "watts": watts},
    )
    _told("device.power_limit_asked", action, actor, after={"watts": watts, "reason": action.reason})
    changes.add(Section.POOL, device.pk)
    changes.add(Section.DESIRED, device.node_id)
    changes.publish()
    return action


def _replace(device: Device, *, actor: Actor) -> None:
    waiting = HealingAction.objects.select_for_update().filter(
        device=device, action=LIMIT_POWER, state=HealingActionState.PENDING
    )
    for old in waiting:
        old.state, old.outcome, old.finished_at = (
            HealingActionState.SUPERSEDED,
            "Another was asked for.",
            timezone.now(),
        )
        old.save(update_fields=["state", "outcome", "finished_at"])
        _told("healing.ended", old, actor, after={"action": old.action, "state": old.state})


def _told(what: str, action: HealingAction, actor: Actor, *, after: dict[str, Any]) -> None:
    record_audit(what, subject=action, actor=actor, after=after)

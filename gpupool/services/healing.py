"""Healing written down: what agents noticed, what was decided, and how it ended."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Max, OuterRef, Subquery
from django.utils import timezone

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, DeviceEvent, HealingAction, HealingActionState, Instance, InstanceState, Node
from gpupool.models.health import OPEN_ACTIONS
from gpupool.policies.healing_world import Decision, Isolation
from gpupool.policies.remedy import ASKS_NODE, HARDWARE, TAKES_OUT, Remedy
from gpupool.services.changes import Changes
from gpupool.services.device_isolation import take_out, with_parts
from gpupool.services.instances import stop_locked
from gpupool.stream.messages import ActionFact, BadMessage, EventFact
from tenants.actor import Actor
from tenants.services import record_audit

EVENT_RETENTION: Final = timedelta(days=90)
MOST_EVENTS_AN_HOUR: Final = 4000
"""Kept of one node: twice what its agent keeps for a web process that is away."""
_LARGEST_STEP: Final = 10**9
"""Between two numbers of events: an agent that dropped some has a gap there, and no agent has had so many."""
_FLOOD: Final = "intake"
_LATEST_SECOND: Final = 253_402_300_799.0


def record_events(node: Node, events: Sequence[EventFact]) -> int:
    """Keep what the node's agent noticed, each number once; returns how many are new. Inside the report's transaction.

    The same error twice has two numbers and is two events; a report that is sent again adds nothing.
    """
    if not events:
        return 0
    named = {event.stable_id for event in events if event.stable_id}
    devices = dict(Device.objects.filter(node=node, stable_id__in=named).values_list("stable_id", "pk"))
    kept = _kept(node)
    if events[-1].sequence > kept + _LARGEST_STEP:
        raise BadMessage(f"event {events[-1].sequence} is far ahead of {kept}, the last one that is kept")
    known = set(
        DeviceEvent.objects.filter(
            node=node, boot_id=node.boot_id, sequence__in=[event.sequence for event in events]
        ).values_list("sequence", flat=True)
    )
    fresh = {event.sequence: event for event in events if event.sequence not in known}
    if fresh and _floods(node):
        return _count_flood(node, [sequence for sequence in fresh if sequence > kept])
    rows = [
        DeviceEvent(
            node=node,
            device_id=devices.get(event.stable_id),
            boot_id=node.boot_id,
            sequence=event.sequence,
            source=event.source[:16],
            kind=event.kind[:24],
            code=event.code,
            text=event.text[:2000],
            data=dict(event.data),
            at=datetime.fromtimestamp(min(max(event.at, 0.0), _LATEST_SECOND), tz=UTC),
        )
        for event in fresh.values()
    ]
    DeviceEvent.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _kept(node: Node) -> int:
    events = DeviceEvent.objects.filter(node=node, boot_id=node.boot_id)
    newest: int | None = events.aggregate(newest=Max("sequence"))["newest"]
    return newest or 0


def _floods(node: Node) -> bool:
    newest = DeviceEvent.objects.filter(node=node).order_by("-id").values_list("received_at", flat=True)
    last = MOST_EVENTS_AN_HOUR - 1
    return any(at > timezone.now() - timedelta(hours=1) for at in newest[last : last + 1])


def _count_flood(node: Node, sequences: Sequence[int]) -> int:
    """One row in place of them all, numbered as the last: nothing is lost unseen, and nobody fills the database."""
    if not sequences:
        return 0
    row = DeviceEvent.objects.filter(node=node).order_by("-id").first()
    if row is None or (row.source, row.boot_id) != (_FLOOD, node.boot_id):
        row = DeviceEvent(node=node, boot_id=node.boot_id, source=_FLOOD, kind="dropped", at=timezone.now())
    count = int(row.data.get("count", "0")) + len(sequences)
    row.sequence, row.data = max(sequences), {"count": str(count)}
    row.text = f"{count} events from then on were not kept: the node tells more than {MOST_EVENTS_AN_HOUR} an hour."
    row.save()
    return 1


@transaction.atomic
def begin_action(decision: Decision, *, actor: Actor, fence: Fence | None = None) -> HealingAction:
    """Do what was decided, as far as rows do it; the rest is the node's, which reads it as desired state.

    Raises Device.DoesNotExist, Superseded.
    """
    check_fence(fence)
    now, changes = timezone.now(), Changes()
    node = Node.objects.select_for_update(no_key=True).get(pk=decision.node_id)
    device = (
        Device.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=decision.device_id)
    )
    _supersede(decision.supersedes, reason=decision.reason, actor=actor, now=now)
    action = HealingAction(
        node=node,
        device=device,
        event_id=decision.events[0] if decision.events else None,
        instance_id=decision.instances[0] if len(decision.instances) == 1 else None,
        action=decision.remedy,
        reason=decision.reason[:1000],
        data={"boot_id": node.boot_id},
    )
    if decision.dry_run:
        action.state = HealingActionState.DRY_RUN
        action.outcome = "Not done: hardware actions are switched off (GATEHOUSE_HEALING_HARDWARE)."
    elif decision.remedy not in ASKS_NODE:
        action.state, action.started_at, action.finished_at = HealingActionState.DONE, now, now
    if not decision.dry_run:
        _act(decision, node, device, action, actor=actor, changes=changes, now=now)
    action.save(force_insert=True)
    record_audit(
        "healing.decided",
        subject=action,
        actor=actor,
        after={
            "action": decision.remedy,
            "state": action.state,
            "node": node.name,
            "device": device.stable_id,
            "reason": action.reason,
        },
    )
    DeviceEvent.objects.filter(pk__in=decision.events).update(decided=True, verdict=decision.reason[:1000])
    changes.add(Section.POOL, device.pk)
    changes.add(Section.DESIRED, node.pk)
    changes.publish()
    return action


def _act(
    decision: Decision,
    node: Node,
    device: Device,
    action: HealingAction,
    *,
    actor: Actor,
    changes: Changes,
    now: datetime,
) -> None:
    if decision.remedy in HARDWARE | TAKES_OUT | {Remedy.END_PROCESSES}:
        by = Isolation.SUPPORT if decision.remedy is Remedy.CORDON else Isolation.HEALING
        for one in with_parts(device):
            take_out(one, by=by, reason=decision.reason, actor=actor, changes=changes, now=now)
    if decision.remedy is Remedy.REBOOT and not node.cordoned:
        node.cordoned = True
        node.save(update_fields=["cordoned"])
        action.data["cordoned"] = True  # by us: its end takes it back
        record_audit("node.cordoned", subject=node, actor=actor, after={"reason": decision.reason})
    whom = set(decision.instances)
    if decision.remedy is Remedy.REBOOT:
        whom |= set(
            Instance.objects.filter(node=node).exclude(state=InstanceState.STOPPED).values_list("pk", flat=True)
        )
    stopped = _stop(whom, reason=decision.reason, actor=actor, changes=changes)
    if action.state == HealingActionState.DONE:
        action.outcome = _asked_to_stop(stopped) if whom else "Done."


def _asked_to_stop(count: int) -> str:
    if count == 1:
        return "1 instance was asked to stop; a new one is asked for."
    return f"{count} instances were asked to stop; new ones are asked for."


def _stop(instance_ids: Collection[UUID], *, reason: str, actor: Actor, changes: Changes) -> int:
    rows = Instance.objects.select_for_update(of=("self",), no_key=True).select_related("version__model", "node")
    stopped = 0
    for instance in rows.filter(pk__in=instance_ids).order_by("pk"):
        stopped += stop_locked(instance, reason=reason, actor=actor, changes=changes)
    return stopped


def _supersede(action_ids: Collection[UUID], *, reason: str, actor: Actor, now: datetime) -> None:
    for old in HealingAction.objects.select_for_update().filter(pk__in=action_ids, state=HealingActionState.PENDING):
        _finish(old, HealingActionState.SUPERSEDED, f"Replaced by a stronger one: {reason}", actor=actor, now=now)


def note_events(event_ids: Collection[UUID], verdict: str, *, fence: Fence | None = None) -> None:
    """Nothing is done about these events, and why. Raises Superseded."""
    with transaction.atomic():
        check_fence(fence)
        DeviceEvent.objects.filter(pk__in=event_ids, decided=False).update(decided=True, verdict=verdict[:1000])


def hold_events(event_ids: Collection[UUID], verdict: str, *, fence: Fence | None = None) -> None:
    """Nothing is done about these events yet, and why. Raises Superseded."""
    with transaction.atomic():
        check_fence(fence)
        DeviceEvent.objects.filter(pk__in=event_ids, decided=False).exclude(verdict=verdict[:1000]).update(
            verdict=verdict[:1000]
        )


def apply_action_facts(node: Node, facts: Sequence[ActionFact], *, actor: Actor, changes: Changes) -> None:
    """How the node's agent says its actions stand. Inside the report's transaction."""
    if not facts:
        return
    told = {fact.action_id: fact for fact in facts}
    now = timezone.now()
    for action in HealingAction.objects.select_for_update().filter(pk__in=told, node=node, state__in=OPEN_ACTIONS):
        fact = told[action.pk]
        state = HealingActionState(fact.state)
        if state == HealingActionState.RUNNING and action.state == HealingActionState.PENDING:
            action.state, action.started_at = state, now
            action.outcome = fact.outcome[:1000]
            action.save(update_fields=["state", "started_at", "outcome"])
            record_audit("healing.started", subject=action, actor=actor, after={"action": action.action})
        elif state in (HealingActionState.DONE, HealingActionState.FAILED, HealingActionState.DRY_RUN):
            _finish(action, state, fact.outcome, actor=actor, now=now)
            _after(action, actor=actor, changes=changes)
        else:
            continue
        changes.add(Section.POOL, node.pk)
        changes.add(Section.DESIRED, node.pk)


@transaction.atomic
def end_overdue_action(action_id: UUID, *, actor: Actor, fence: Fence | None = None) -> None:
    """Nobody told its end in time: it failed. Raises Superseded."""
    check_fence(fence)
    action = HealingAction.objects.select_for_update().filter(pk=action_id, state__in=OPEN_ACTIONS).first()
    if action is None:
        return
    changes = Changes()
    _finish(
        action, HealingActionState.FAILED, "Its node did not tell its end in time.", actor=actor, now=timezone.now()
    )
    _after(action, actor=actor, changes=changes)
    changes.add(Section.POOL, action.node_id)
    changes.add(Section.DESIRED, action.node_id)
    changes.publish()


def end_reboots(node: Node, *, actor: Actor, changes: Changes) -> None:
    """The node came back under another boot id: its restarts are done. Inside the hello's transaction."""
    rows = HealingAction.objects.select_for_update().filter(node=node, action=Remedy.REBOOT, state__in=OPEN_ACTIONS)
    for action in rows:
        if action.data.get("boot_id") != node.boot_id:
            _finish(action, HealingActionState.DONE, "The node has restarted.", actor=actor, now=timezone.now())
            _after(action, actor=actor, changes=changes)


def disown_cordon(node: Node, *, actor: Actor) -> None:
    """A person has cordoned the node: no restart of ours ends that."""
    for action in HealingAction.objects.select_for_update().filter(
        node=node, action=Remedy.REBOOT, state__in=OPEN_ACTIONS
    ):
        if action.data.pop("cordoned", None):
            action.save(update_fields=["data"])
            record_audit("healing.cordon_kept", subject=action, actor=actor, after={"node": node.name})


def _finish(action: HealingAction, state: HealingActionState, outcome: str, *, actor: Actor, now: datetime) -> None:
    before, action.state = action.state, state
    action.outcome, action.finished_at = outcome[:1000], now
    action.save(update_fields=["state", "outcome", "finished_at"])
    record_audit(
        "healing.ended",
        subject=action,
        actor=actor,
        before={"state": before},
        after={"action": action.action, "state": state, "outcome": action.outcome},
    )


def _after(action: HealingAction, *, actor: Actor, changes: Changes) -> None:
    """A cordon that was made for a restart ends with it, however it ended: the device itself stays out."""
    if action.action != Remedy.REBOOT or not action.data.get("cordoned"):
        return
    node = Node.objects.select_for_update(no_key=True).get(pk=action.node_id)
    if node.cordoned:
        node.cordoned = False
        node.save(update_fields=["cordoned"])
        record_audit("node.uncordoned", subject=node, actor=actor, after={"reason": action.outcome})
        changes.add(Section.POOL, node.pk)


def prune_events(*, now: datetime, keep: timedelta = EVENT_RETENTION) -> int:
    """Delete decided events older than `keep`, but for the newest of each node, by which its agent goes on counting.

    Returns how many. Safe to run twice.
    """
    newest = DeviceEvent.objects.filter(node=OuterRef("node")).order_by("-pk").values("pk")[:1]
    old = DeviceEvent.objects.filter(decided=True, received_at__lt=now - keep).exclude(pk=Subquery(newest))
    removed, _ = DeviceEvent.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:100_000])).delete()
    return removed

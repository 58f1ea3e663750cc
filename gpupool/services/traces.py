"""What is written down of an instance's life for its page: steps between states, wishes, and the end of its log."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from gpupool.models import Instance, InstanceEvent, InstanceLog, InstanceState, Node
from gpupool.policies.instance import State
from gpupool.policies.log_text import last_lines
from gpupool.services.changes import Changes
from gpupool.stream.messages import LogFact
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

EVENT_RETENTION: Final = timedelta(days=30)
LOG_WANTED: Final = timedelta(seconds=30)
"""How long one look at a log asks its node for it; a page that stays open asks again."""

LOG_RETENTION: Final = timedelta(hours=1)
_RENEW: Final = timedelta(seconds=20)
_LONGEST_REASON: Final = 1000
_AT_ONCE: Final = 50_000


def note_state(
    instance: Instance,
    *,
    actor: Actor,
    before: State | None = None,
    through: Iterable[State] = (),
    at: datetime | None = None,
) -> None:
    """It is in its state now; within the transaction that brought it there."""
    InstanceEvent.objects.create(
        instance=instance,
        kind="state",
        value=instance.state,
        before=before or "",
        through=[state.value for state in through],
        reason=instance.reason[:_LONGEST_REASON],
        by=actor.kind,
        at=at or timezone.now(),
    )


def note_wish(instance: Instance, *, before: str, reason: str, actor: Actor) -> None:
    """Somebody wants it otherwise; its node brings that about."""
    InstanceEvent.objects.create(
        instance=instance,
        kind="wish",
        value=instance.desire,
        before=before,
        reason=reason[:_LONGEST_REASON],
        by=actor.kind,
    )


@transaction.atomic
def ask_for_log(instance_id: UUID, *, actor: Actor, now: datetime | None = None) -> InstanceLog:
    """Have the node tell the last lines of the engine's log for LOG_WANTED; what it told so far is there at once.

    Audited where nobody read it before: prompts may stand in an engine's log.
    Raises Instance.DoesNotExist, and InvalidInput for one that was attached, whose log lies elsewhere.
    """
    moment = now or timezone.now()
    instance = Instance.objects.select_related("version__model").get(pk=instance_id)
    if instance.attached:
        raise InvalidInput("instance", "It was attached by its address: its log lies where it was started.")
    log, created = InstanceLog.objects.select_for_update(of=("self",)).get_or_create(
        instance=instance, defaults={"wanted_until": moment + LOG_WANTED}
    )
    lapsed = created or log.wanted_until <= moment
    if lapsed or log.wanted_until - moment < _RENEW:
        log.wanted_until = moment + LOG_WANTED
        log.save(update_fields=["wanted_until"])
    if lapsed:
        record_audit("instance.log_read", subject=instance, actor=actor, tenant_id=instance.owner_id)
        if instance.node_id is not None and instance.state != InstanceState.STOPPED:
            changes = Changes()
            changes.add(Section.DESIRED, instance.node_id)
            changes.publish()
    return log


def keep_logs(node: Node, facts: Sequence[LogFact], *, now: datetime) -> None:
    """What the node told, of logs that were asked for and of instances of its own; the rest is passed over."""
    if not facts:
        return
    told = {fact.instance_id: fact for fact in facts}
    # Told while it was wanted, and on its way when it was not any more: the last word counts.
    wanted = InstanceLog.objects.filter(instance__in=told, instance__node=node, wanted_until__gt=now - LOG_WANTED)
    for log in wanted.order_by("pk"):
        fact = told[log.instance_id]
        tail = last_lines(fact.text)  # another machine's word: cleaned here too
        log.text, log.cut, log.told_at = tail.text, fact.cut or tail.cut, now
        log.save(update_fields=["text", "cut", "told_at"])


def prune_traces(*, now: datetime) -> int:
    """Delete old steps, and logs that nobody has read for a while; returns how many rows. Safe to run twice."""
    logs, _ = InstanceLog.objects.filter(wanted_until__lt=now - LOG_RETENTION).delete()
    old = InstanceEvent.objects.filter(at__lt=now - EVENT_RETENTION).order_by("at").values_list("pk", flat=True)
    events, _ = InstanceEvent.objects.filter(pk__in=list(old[:_AT_ONCE])).delete()
    return logs + events

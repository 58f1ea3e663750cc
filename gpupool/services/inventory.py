"""What agents report, written down. Telemetry is overwritten in place; only changes of state are audited."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog
from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from core.ids import uuid7
from gpupool.models import Instance, InstanceDesire, InstanceState, Lease, Node, NodeState
from gpupool.models.catalog import PAPERS_OF_VERSION
from gpupool.policies.instance import HOLDS_PROCESS, IllegalTransition, State, held_back, observed_target
from gpupool.policies.lease import instance_in
from gpupool.services.changes import Changes
from gpupool.services.claims import release
from gpupool.services.device_rows import apply_devices
from gpupool.services.healing import apply_action_facts, end_reboots, record_events
from gpupool.services.instances import move
from gpupool.services.observation import barrier, devices_in_trouble, measure, observed_members
from gpupool.services.resizing import give_back
from gpupool.services.traces import keep_logs
from gpupool.stream.messages import EngineLoadFact, Hello, InstanceFact, Observed
from tenants.actor import Actor, node_actor
from tenants.services import record_audit

_WAS_STARTED: Final = frozenset({State.LOADING, State.WARMING, State.READY, State.ASLEEP, State.UNKNOWN})

logger = structlog.get_logger(__name__)


class SessionSuperseded(Exception):
    """A newer stream speaks for the node, or its token was changed: this one must close."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What a report led to: the stream it belongs to, and processes that no instance of ours accounts for."""

    session_id: UUID
    orphans: tuple[InstanceFact, ...] = field(default=())


@transaction.atomic
def apply_hello(node_id: UUID, hello: Hello, *, token_digest: str | None = None) -> Intake:
    """A stream of the node begins and replaces any earlier one. Raises Node.DoesNotExist.

    `token_digest` is of the token that opened the stream: where that is void by now, SessionSuperseded is raised.
    A new boot id means that every process of the last boot is gone: what it held is released.
    """
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    if token_digest is not None and (node.token_revoked_at is not None or node.token_digest != token_digest):
        raise SessionSuperseded
    actor, changes, now = node_actor(node.pk), Changes(), timezone.now()
    rebooted = bool(node.boot_id) and node.boot_id != hello.boot_id
    node.session_id, node.last_seen_at = uuid7(), now
    node.boot_id, node.address = hello.boot_id, hello.address
    node.agent_version, node.facts = hello.agent_version, dict(hello.facts)
    node.capabilities, node.simulated = dict(hello.capabilities), hello.simulated
    _bring_online(node, actor=actor, changes=changes)
    node.save()
    if rebooted:
        record_audit("node.rebooted", subject=node, actor=actor, after={"boot_id": hello.boot_id})
        _end_last_boot(node, hello.instances, actor=actor, changes=changes)
        end_reboots(node, actor=actor, changes=changes)
    apply_devices(node, hello.devices, actor=actor, changes=changes, now=now)
    orphans = _apply_instances(node, hello.instances, actor=actor, changes=changes, now=now)
    changes.publish()
    return Intake(node.session_id, orphans)


@transaction.atomic
def apply_observed(node_id: UUID, session_id: UUID, observed: Observed) -> Intake:
    """One report of a running stream. Raises SessionSuperseded when another stream speaks for the node by now."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id, session_id=session_id).first()
    if node is None:
        raise SessionSuperseded
    actor, changes, now = node_actor(node.pk), Changes(), timezone.now()
    node.last_seen_at = now
    _bring_online(node, actor=actor, changes=changes)
    fields = ["last_seen_at", "state"]
    if observed.capabilities:
        node.capabilities = dict(observed.capabilities)
        fields.append("capabilities")
    node.save(update_fields=fields)
    apply_devices(node, observed.devices, actor=actor, changes=changes, now=now)
    orphans = _apply_instances(node, observed.instances, actor=actor, changes=changes, now=now)
    _apply_load(node, observed.load)
    if record_events(node, observed.events):
        changes.add(Section.POOL, node.pk)  # healing decides about them
    apply_action_facts(node, observed.actions, actor=actor, changes=changes)
    keep_logs(node, observed.logs, now=now)
    changes.publish()
    return Intake(session_id, orphans)


def _bring_online(node: Node, *, actor: Actor, changes: Changes) -> None:
    if node.state == NodeState.ONLINE:
        return
    before, node.state = node.state, NodeState.ONLINE
    record_audit(
        "node.state_changed", subject=node, actor=actor, before={"state": before}, after={"state": NodeState.ONLINE}
    )
    changes.add(Section.POOL, node.pk)
    changes.add(Section.DESIRED, node.pk)


def _end_last_boot(node: Node, reported: Sequence[InstanceFact], *, actor: Actor, changes: Changes) -> None:
    # An agent also lists what it remembers from the last boot, and would start again: that has no process.
    alive = {fact.instance_id for fact in reported if fact.pid is not None}
    for instance in _locked_instances(node):
        if instance.pk in alive or State(instance.state) not in HOLDS_PROCESS | {State.FAILED}:
            continue
        instance.desire = InstanceDesire.STOPPED
        instance.save(update_fields=["desire"])
        move(instance, State.STOPPED, reason="Its node was restarted.", actor=actor, changes=changes)
    stale = Lease.objects.select_for_update(of=("self",)).filter(device__node=node, released_at__isnull=True)
    for lease in stale.exclude(boot_id=node.boot_id):
        if instance_in(lease.holder) in alive:
            lease.boot_id = node.boot_id  # its process is seen under the new one: the claim holds there too
            lease.save(update_fields=["boot_id"])
        else:
            release(lease, actor=actor, reason="the node was restarted", changes=changes)


def _locked_instances(node: Node) -> list[Instance]:
    rows = Instance.objects.select_for_update(of=("self",), no_key=True).select_related("version__model")
    rows = rows.filter(node=node).exclude(state=InstanceState.STOPPED).defer(*PAPERS_OF_VERSION)
    found = list(rows.order_by("pk"))
    for instance in found:
        instance.node = node  # read already: joined to each report's rows it costs as much as these
    return found


def _apply_instances(
    node: Node, facts: Sequence[InstanceFact], *, actor: Actor, changes: Changes, now: datetime
) -> tuple[InstanceFact, ...]:
    known = {instance.pk: instance for instance in _locked_instances(node)}
    orphans: list[InstanceFact] = []
    reported: list[tuple[Instance, InstanceFact]] = []
    for fact in facts:
        instance = known.get(fact.instance_id)
        if instance is None:
            if State(fact.state) in HOLDS_PROCESS:
                orphans.append(fact)
            continue
        if fact.fencing_token != instance.fencing_token:
            # A report about an earlier claim of the same instance says nothing about this one.
            logger.warning("stale_report", node=node.name, instance=str(fact.instance_id), token=fact.fencing_token)
            continue
        reported.append((instance, fact))
    trouble = devices_in_trouble(instance for instance, fact in reported if fact.state == State.READY)
    for instance, fact in reported:
        bar = barrier(instance, fact, trouble.get(instance.pk, ""))
        _apply_instance(node, instance, fact, bar, actor=actor, changes=changes, now=now)
    # A report lists all that the agent knows: what it once started and does not list any more is not there.
    listed = {fact.instance_id for fact in facts}
    for instance in known.values():
        wanted = instance.desire != InstanceDesire.STOPPED
        if instance.pk not in listed and wanted and State(instance.state) in _WAS_STARTED:
            reason = f"Node {node.name} does not run it any more."
            move(instance, State.FAILED, reason=reason, actor=actor, changes=changes, now=now)
    return tuple(orphans)


def _apply_instance(
    node: Node, instance: Instance, fact: InstanceFact, bar: str, *, actor: Actor, changes: Changes, now: datetime
) -> None:
    target = observed_target(
        held_back(State(fact.state), State(instance.state), barrier=bar),
        wanted_running=instance.desire != InstanceDesire.STOPPED,
        has_process=fact.pid is not None,
    )
    seen = observed_members(node, instance, fact)
    if fact.state == State.UNKNOWN:  # its engine does not answer: what it last said of its load may be long over
        seen |= {"running_requests": None, "waiting_requests": None, "kv_used": None}
    changed = [name for name, value in seen.items() if getattr(instance, name) != value]
    if changed:
        for name in changed:
            setattr(instance, name, seen[name])
        instance.save(update_fields=changed)
        measure(instance, changed)
        if {"host", "port", "slots", "guard_cap"} & set(changed):
            changes.add(Section.ENDPOINTS, instance.pk)
    try:
        moved = move(instance, target, reason=bar or fact.reason, actor=actor, changes=changes, now=now)
        news = moved or {"device_bytes", "pid"} & set(changed)
        if news and target == State.ASLEEP and instance.desire == InstanceDesire.ASLEEP:
            give_back(instance, actor=actor, changes=changes)
    except IllegalTransition as error:
        logger.warning("illegal_report", node=node.name, instance=str(instance.pk), error=str(error))


def _apply_load(node: Node, facts: Sequence[EngineLoadFact]) -> None:
    for fact in facts:
        Instance.objects.filter(pk=fact.instance_id, node=node).exclude(
            running_requests=fact.running, waiting_requests=fact.waiting, kv_used=fact.kv_used
        ).update(running_requests=fact.running, waiting_requests=fact.waiting, kv_used=fact.kv_used)

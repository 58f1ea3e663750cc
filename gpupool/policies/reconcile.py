"""What the controller does about the difference between what is wanted and what is there. Pure.

It keeps the wanted number of instances of each version, and is slow to give up on any: a silent node's
instances count until a grace has passed, a failed one is left to its agent's own restarts for a while.
When most of the fleet falls silent at once, the fault is more likely here than there: nothing is moved.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from gpupool.policies.instance import COMING_OR_UP, HOLDS_PROCESS, State
from gpupool.policies.placement import (
    DeviceView,
    Need,
    Placed,
    Preempt,
    QuotaView,
    ReservationView,
    Round,
    Unplaced,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How patient the controller is, in seconds."""

    unknown_grace_seconds: float = 30.0  # an unknown instance is replaced elsewhere after this
    failed_grace_seconds: float = 30.0  # a failed one after this, its agent has tried by then
    first_backoff_seconds: float = 5.0  # between replacements that never became ready; doubles
    longest_backoff_seconds: float = 300.0
    mass_failure_share: float = 0.5  # of the nodes that ever connected, silent together


@dataclass(frozen=True, slots=True)
class VersionView:
    """A version as wanted. `failures` counts its latest instances in a row that ended without ever being ready."""

    version_id: UUID
    label: str
    replicas: int
    need: Need
    failures: int = 0
    last_failure_at: float | None = None
    held_back: str = ""  # why nothing new of it may be placed now, in a sentence
    serving: bool = True  # else what tenants acquired of it ends, too


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance that has not stopped; attached ones are not listed. Times are seconds since the epoch."""

    instance_id: UUID
    version_id: UUID
    node_id: UUID | None
    state: State
    wanted: bool
    since: float
    reason: str = ""
    answers: bool = False  # it answered a probe of the controller just now; asked only while its node is silent
    tenant_id: UUID | None = None  # it serves this tenant and no other
    pooled: bool = False  # a tenant acquired it: it is none of its version's replicas


@dataclass(frozen=True, slots=True)
class NodeView:
    """`connected`: the records say it is online; `alive`: its liveness key is in the store."""

    node_id: UUID
    name: str
    connected: bool
    alive: bool
    ever_connected: bool = True
    maintenance: bool = False  # what runs there moves away


@dataclass(frozen=True, slots=True)
class World:
    now: float
    versions: Sequence[VersionView]
    instances: Sequence[InstanceView]
    nodes: Sequence[NodeView]
    devices: Sequence[DeviceView]
    quotas: Sequence[QuotaView] = ()
    reservations: Sequence[ReservationView] = ()


@dataclass(frozen=True, slots=True)
class MarkNodeUnreachable:
    node_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class MarkUnknown:
    instance_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    version_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """`device_ids` are all on one node and claimed together."""

    instance_id: UUID
    device_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Explain:
    instance_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    instance_id: UUID
    reason: str


Action = MarkNodeUnreachable | MarkUnknown | Request | Place | Explain | Stop


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now; `wake_at` is when something will be due with nothing else happening, None if never."""

    actions: tuple[Action, ...]
    mass_failure: bool
    wake_at: float | None


def is_mass_failure(nodes: Sequence[NodeView], *, share: float) -> bool:
    """Are so many of the nodes that ever connected silent that the cause is likely a common one?

    All of them, or at least two and that share. A node that is gone for good is taken out of the count by
    declaring it lost.
    """
    counted = [node for node in nodes if node.ever_connected]
    silent = sum(not node.alive for node in counted)
    if silent == 0:
        return False
    return silent == len(counted) or (silent >= 2 and silent >= share * len(counted))


def reconcile(world: World, rules: Rules) -> Plan:
    """All that should be done now. Carrying out any part of it and asking again is safe."""
    mass_failure = is_mass_failure(world.nodes, share=rules.mass_failure_share)
    actions: list[Action] = []
    due: list[float] = []
    silent = {node.node_id for node in world.nodes if not node.alive}
    actions += [
        MarkNodeUnreachable(node.node_id, "Its agent is not heard any more.")
        for node in world.nodes
        if node.connected and not node.alive
    ]
    instances = []
    for instance in world.instances:
        if _lost_sight(instance, silent):
            actions.append(MarkUnknown(instance.instance_id, "Its node is silent and it does not answer either."))
            instance = replace(instance, state=State.UNKNOWN, since=world.now)
        instances.append(instance)
    waiting: list[InstanceView] = []
    leaving = {node.node_id for node in world.nodes if node.maintenance}
    for version in world.versions:
        of_it = [instance for instance in instances if instance.version_id == version.version_id and instance.wanted]
        own = [instance for instance in of_it if not instance.pooled]
        wanted_actions, kept = _keep_replicas(
            version, own, world.now, rules, mass_failure=mass_failure, due=due, leaving=leaving
        )
        pooled_actions, pooled = _keep_pooled(
            version, [one for one in of_it if one.pooled], world.now, rules, due=due, leaving=leaving
        )
        actions += wanted_actions + pooled_actions
        waiting += [instance for instance in [*kept, *pooled] if instance.state == State.REQUESTED]
    actions += _place_waiting(waiting, world)
    later = [moment for moment in due if moment > world.now]
    return Plan(tuple(actions), mass_failure, min(later, default=None))


def backoff_seconds(failures: int, rules: Rules) -> float:
    """Wait before the next replacement after `failures` in a row that never became ready."""
    if failures <= 0:
        return 0.0
    return min(rules.longest_backoff_seconds, rules.first_backoff_seconds * 2.0 ** min(failures - 1, 30))


def _lost_sight(instance: InstanceView, silent: set[UUID]) -> bool:
    if instance.node_id not in silent or instance.answers:
        return False
    return instance.state in HOLDS_PROCESS - {State.UNKNOWN, State.DRAINING}


def _keep_replicas(
    version: VersionView,
    own: Sequence[InstanceView],
    now: float,
    rules: Rules,
    *,
    mass_failure: bool,
    due: list[float],
    leaving: Collection[UUID] = (),
) -> tuple[list[Action], list[InstanceView]]:
    """Actions for one version, and the instances that stay."""
    actions: list[Action] = []
    counted: list[InstanceView] = []
    moving: list[InstanceView] = []  # still serving, and replaced elsewhere first
    for instance in own:
        if version.replicas == 0:
            actions.append(Stop(instance.instance_id, f"No instance of {version.label} is wanted any more."))
        elif instance.state in COMING_OR_UP and instance.node_id in leaving:
            moving.append(instance)
        elif instance.state in COMING_OR_UP:
            counted.append(instance)
        elif instance.state == State.UNKNOWN:
            gone_at = instance.since + rules.unknown_grace_seconds
            if mass_failure or now < gone_at:
                counted.append(instance)
                due.append(gone_at)
        elif instance.state == State.FAILED:
            over_at = instance.since + rules.failed_grace_seconds
            if now < over_at:
                counted.append(instance)
                due.append(over_at)
            else:
                actions.append(Stop(instance.instance_id, f"Replaced after it failed: {instance.reason}"))
    actions += _leave(moving, version, ready_elsewhere=sum(one.state in _SERVES for one in counted))
    surplus = len(counted) - version.replicas
    if surplus > 0:
        by_value = sorted(counted, key=_keeping_order)
        reason = f"{version.label} has more than {version.replicas} instances."
        actions += [Stop(instance.instance_id, reason) for instance in by_value[version.replicas :]]
        return actions, by_value[: version.replicas]
    if surplus < 0:
        may_at = (version.last_failure_at or 0.0) + backoff_seconds(version.failures, rules)
        if now >= may_at:
            # One at a time while they fail: a broken artefact must not be tried on every device at once.
            missing = -surplus if version.failures == 0 else 1
            reason = f"{version.label} has {len(counted)} of {version.replicas} instances."
            actions += [Request(version.version_id, reason)] * missing
        else:
            due.append(may_at)
    return actions, counted


def _leave(moving: Sequence[InstanceView], version: VersionView, *, ready_elsewhere: int) -> list[Action]:
    """What ends on nodes in maintenance: all that does not serve, and the rest as others serve in its place."""
    serving = sorted((one for one in moving if one.state in _SERVES), key=_keeping_order)
    kept = serving[: max(0, version.replicas - ready_elsewhere)]
    reason = "Its node is in maintenance."
    return [Stop(one.instance_id, reason) for one in moving if one not in kept]


def _keep_pooled(
    version: VersionView,
    own: Sequence[InstanceView],
    now: float,
    rules: Rules,
    *,
    due: list[float],
    leaving: Collection[UUID] = (),
) -> tuple[list[Action], list[InstanceView]]:
    """What tenants acquired: kept while its version serves and it does not fail. They acquire another, not we."""
    actions: list[Action] = []
    kept: list[InstanceView] = []
    for instance in own:
        over_at = instance.since + rules.failed_grace_seconds
        if not version.serving:
            actions.append(Stop(instance.instance_id, f"{version.label} serves no more."))
        elif instance.node_id in leaving:
            actions.append(Stop(instance.instance_id, "Its node is in maintenance."))
        elif instance.state == State.FAILED and now >= over_at:
            actions.append(Stop(instance.instance_id, f"It failed: {instance.reason}"))
        else:
            kept.append(instance)
            if instance.state == State.FAILED:
                due.append(over_at)
    return actions, kept


_SERVES = frozenset({State.READY, State.ASLEEP})
_VALUE = {State.READY: 0, State.ASLEEP: 1, State.WARMING: 2, State.LOADING: 3, State.STAGING: 4, State.PLACING: 5}


def _keeping_order(instance: InstanceView) -> tuple[int, float, UUID]:
    """Those that serve first, the longest first: one that comes back may hang again, its replacement has not yet."""
    return _VALUE.get(instance.state, 9), instance.since, instance.instance_id


def _place_waiting(waiting: Sequence[InstanceView], world: World) -> list[Action]:
    """The most important first: what one is told to leave for another must not be taken by a third."""
    versions = {version.version_id: version for version in world.versions}
    this_round = Round(world.devices, quotas=world.quotas, reservations=world.reservations, now=world.now)
    actions: list[Action] = []
    ordered = sorted(waiting, key=lambda one: (-versions[one.version_id].need.priority, one.instance_id))
    # Before all, what is reserved for its tenant: who had to give it back must not be there first again.
    due = {
        one.instance_id
        for one in ordered
        if not versions[one.version_id].held_back and this_round.is_due(_need_of(one, versions[one.version_id]))
    }
    for instance in sorted(ordered, key=lambda one: one.instance_id not in due):
        version = versions[instance.version_id]
        if version.held_back:
            actions += _explain(instance, version.held_back)
            continue
        need = _need_of(instance, version)
        # Nobody goes for what did not start the last time: it would be asked for again and again.
        may_preempt, by_right = version.failures == 0, instance.instance_id in due
        match this_round.place(need, holder=instance.instance_id, may_preempt=may_preempt, by_right=by_right):
            case Placed(device_ids=device_ids):
                actions.append(Place(instance.instance_id, device_ids))
            case Preempt(instances=victims, reason=reason):
                actions += [Stop(one, f"It makes room for {version.label}.") for one in victims]
                actions += _explain(instance, reason)
            case Unplaced(reason=reason):
                actions += _explain(instance, reason)
    return actions


def _need_of(instance: InstanceView, version: VersionView) -> Need:
    """A tenant's own instance is its tenant's, whoever else its version serves."""
    return version.need if instance.tenant_id is None else replace(version.need, tenant_id=instance.tenant_id)


def _explain(instance: InstanceView, reason: str) -> list[Action]:
    return [] if reason == instance.reason else [Explain(instance.instance_id, reason)]

"""Reads the world that the reconcile policy decides about."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from gpupool.models import (
    Instance,
    InstanceDesire,
    InstanceState,
    ModelVersion,
    Node,
    NodeState,
    VersionState,
)
from gpupool.models.catalog import PAPERS, RUNS
from gpupool.policies.instance import COMING_OR_UP, State
from gpupool.policies.reconcile import InstanceView, NodeView, VersionView, World
from gpupool.reads.placement import need_of, read_devices, read_quotas, read_reservations
from gpupool.selectors import switched_off_engines
from gpupool.services import switched_off

_HISTORY = 20
_PLACED = COMING_OR_UP - {State.REQUESTED}


def list_connected_nodes() -> frozenset[UUID]:
    """Nodes that the records say are online."""
    return frozenset(Node.objects.filter(state=NodeState.ONLINE).values_list("pk", flat=True))


def read_world(
    *, now: datetime, connected: Collection[UUID], live_nodes: Collection[UUID], answering: Collection[UUID]
) -> World:
    """Everything at one look; `answering` comes from probes just made.

    `connected` must have been read before `live_nodes`, the nodes whose liveness key is in the lease store:
    a node is alive before it is recorded as online, so one that was online and then had no key is silent,
    while one that came online in between was merely not looked at yet.
    """
    instances = list(Instance.objects.filter(attached=False).exclude(state=InstanceState.STOPPED).order_by("pk"))
    versions = (
        ModelVersion.objects.select_related("model")
        .defer(*PAPERS)
        .filter(Q(replicas__gt=0) | Q(pk__in={instance.version_id for instance in instances}))
    )
    placed = Counter(
        instance.version_id
        for instance in instances
        if instance.desire != InstanceDesire.STOPPED and not instance.pooled and State(instance.state) in _PLACED
    )
    off = frozenset(switched_off_engines())
    return World(
        now=now.timestamp(),
        versions=[_version(version, placed[version.pk], off) for version in versions.order_by("pk")],
        instances=[_instance(instance, answering) for instance in instances],
        nodes=[_node(node, connected, live_nodes) for node in Node.objects.order_by("pk")],
        devices=read_devices(live_nodes),
        quotas=read_quotas(now),
        reservations=read_reservations(),
    )


def _version(version: ModelVersion, placed: int, off: Collection[str]) -> VersionView:
    # Its history matters only where something has to be asked for, or to be placed.
    failures, last = _failures(version.pk) if placed < version.replicas else (0, None)
    return VersionView(
        version_id=version.pk,
        label=f"{version.model.name} {version.name}",
        replicas=version.replicas if version.state in RUNS else 0,
        need=need_of(version),
        failures=failures,
        last_failure_at=last,
        serving=version.state == VersionState.SERVING,
        held_back=switched_off(version.engine) if version.engine in off else "",
    )


def _failures(version_id: UUID) -> tuple[int, float | None]:
    """Its latest placed instances in a row that ended without ever having been ready, and when the last of them did."""
    history: Iterable[tuple[str, str, datetime | None, datetime]] = (
        Instance.objects.filter(version=version_id, attached=False, lease_id__isnull=False)
        .order_by("-pk")
        .values_list("state", "desire", "ready_at", "state_changed_at")[:_HISTORY]
    )
    count, last = 0, None
    for state, desire, ready_at, changed_at in history:
        ended = state == InstanceState.STOPPED or (state == InstanceState.FAILED and desire == InstanceDesire.STOPPED)
        if not ended:
            continue
        if ready_at is not None:
            break
        count += 1
        last = changed_at.timestamp() if last is None else last
    return count, last


def _instance(instance: Instance, answering: Collection[UUID]) -> InstanceView:
    return InstanceView(
        instance_id=instance.pk,
        version_id=instance.version_id,
        node_id=instance.node_id,
        state=State(instance.state),
        wanted=instance.desire != InstanceDesire.STOPPED,
        since=instance.state_changed_at.timestamp(),
        reason=instance.reason,
        answers=instance.pk in answering,
        tenant_id=instance.tenant_id,
        pooled=instance.pooled,
    )


def _node(node: Node, connected: Collection[UUID], live_nodes: Collection[UUID]) -> NodeView:
    just_came = node.state == NodeState.ONLINE and node.pk not in connected
    return NodeView(
        node_id=node.pk,
        name=node.name,
        connected=node.state == NodeState.ONLINE,
        alive=node.pk in live_nodes or just_came,
        ever_connected=node.state != NodeState.EXPECTED,
        maintenance=node.maintenance,
    )

"""Which engines the controller asks itself."""

from collections.abc import Collection
from uuid import UUID

from django.conf import settings

from core.tls import engine_context
from gpupool.controller.prober import Target
from gpupool.models import Instance, InstanceDesire, InstanceState
from gpupool.policies.instance import State
from gpupool.selectors import engine_authorization


def list_attached_targets() -> list[Target]:
    """Every attached engine."""
    instances = Instance.objects.filter(attached=True, desire=InstanceDesire.RUNNING)
    rows = instances.exclude(state=InstanceState.STOPPED).select_related("version").order_by("pk")
    return [target_of(instance) for instance in rows]


def list_silent_targets(live_nodes: Collection[UUID], state: State) -> list[Target]:
    """Engines in `state` that were serving on a node that is silent now: only they can say whether they still do.

    Not where another node reports an engine at the same address: that one would answer in its place.
    """
    instances = Instance.objects.filter(
        attached=False,
        desire=InstanceDesire.RUNNING,
        state=InstanceState(state),
        ready_at__isnull=False,
        port__isnull=False,
    ).exclude(host="")
    if state == State.UNKNOWN:  # one that slept, or that its device or its tenant's signature barred, may answer too
        instances = instances.filter(lost_serving=True)
    taken = set(
        Instance.objects.filter(node_id__in=live_nodes, port__isnull=False)
        .exclude(state=InstanceState.STOPPED)
        .values_list("host", "port")
    )
    rows = instances.exclude(node_id__in=live_nodes).select_related("version").order_by("pk")
    return [target_of(instance) for instance in rows if (instance.host, instance.port) not in taken]


def target_of(instance: Instance) -> Target:
    """How to ask an instance that has a port. Raises SettingsError where a wrong CA file is set."""
    assert instance.port is not None
    return Target(
        instance_id=instance.pk,
        engine=instance.engine,
        host=instance.host,
        port=instance.port,
        base_path=instance.base_path,
        served_name=instance.version.served_name,
        authorization=engine_authorization(instance.credential_variable),
        tls=engine_context(settings.GATEHOUSE.engine_ca_file) if instance.tls else None,
        state=State(instance.state),
        reason=instance.reason,
    )

"""The control API of the devices' memory: the tree that the console's wall shows, and a tenant's own."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from gpupool.api.base import PoolView
from gpupool.models import Node
from gpupool.policies.memory_summary import summarise
from gpupool.policies.memory_tree import MemoryTree
from gpupool.reads.memory import read_tenant_quotas, read_tenant_tree, read_tree
from tenants.api.access import tenant_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object


class HeadroomSerializer(serializers.Serializer[Any]):
    """One instance's KV cache."""

    instance_id = serializers.CharField()
    model = serializers.CharField()
    tenant = serializers.CharField()
    device = serializers.CharField()
    used = serializers.FloatField(help_text="Share of its KV cache in use, 0 to 1.")
    free_mib = serializers.IntegerField()


class HoleSerializer(serializers.Serializer[Any]):
    device_id = serializers.CharField()
    device = serializers.CharField()
    mib = serializers.IntegerField()


class MemorySummarySerializer(serializers.Serializer[Any]):
    """Of the GPUs; of the processors where there are no GPUs."""

    devices = serializers.IntegerField()
    instances = serializers.IntegerField()
    size_mib = serializers.IntegerField()
    allocated_mib = serializers.IntegerField(help_text="Claimed by instances, whether in use or not.")
    used_mib = serializers.IntegerField(allow_null=True, help_text="In use now; null: no device tells.")
    untold = serializers.IntegerField(help_text="Devices that do not tell what is in use.")
    schedulable_mib = serializers.IntegerField(
        allow_null=True, help_text="What placement may still promise; null: no device tells its size."
    )
    weights_mib = serializers.IntegerField(allow_null=True, help_text="Null: no engine tells.")
    kv_reserved_mib = serializers.IntegerField(
        allow_null=True, help_text="KV caches, filled or not; null: no engine tells."
    )
    kv_used_mib = serializers.IntegerField(allow_null=True, help_text="Null: no engine tells.")
    hole = HoleSerializer(allow_null=True, help_text="The most that can still be placed in one piece.")
    pressed = serializers.IntegerField(help_text="Instances with 92 % of their KV cache in use, or more.")
    tightest = HeadroomSerializer(many=True)


class MemoryNodeSerializer(serializers.Serializer[Any]):
    """One node of the tree. What `extra` has is in docs/wire.md."""

    parent_index = serializers.IntegerField(help_text="Its index in the list; -1 of the first.")
    kind = serializers.CharField(help_text="cluster, node, gpu, tenant, instance or segment")
    id = serializers.CharField()
    name = serializers.CharField()
    extra = serializers.DictField()
    mib = serializers.IntegerField(help_text="Of a segment its size, of others the sum of theirs.")


class MemoryTreeSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    scope = serializers.CharField()
    simulated = serializers.CharField(help_text="all or some of it is made up; empty: nothing is")
    summary = MemorySummarySerializer()
    nodes = MemoryNodeSerializer(many=True)


class TenantQuotaSerializer(serializers.Serializer[Any]):
    """One of the tenant's limits on GPUs or their memory, against what it holds and uses."""

    metric = serializers.CharField(help_text="gpus or gpu_memory")
    model = serializers.CharField(help_text="the one model that it counts; empty: all")
    amount = serializers.IntegerField(help_text="GPUs or bytes that may be held")
    held = serializers.IntegerField(help_text="GPUs or bytes that are claimed")
    used_bytes = serializers.IntegerField(
        allow_null=True, help_text="in use now; null: not all processes tell, or departments are counted too"
    )


class TenantMemorySerializer(MemoryTreeSerializer):
    quotas = TenantQuotaSerializer(many=True)


class MemoryQuery(Query):
    node = serializers.UUIDField(required=False, help_text="Of one node alone.")


class GpuMemoryView(PoolView):
    """Where every byte of device memory is."""

    query_class = MemoryQuery

    @extend_schema(operation_id="gpu_memory", parameters=[MemoryQuery], responses=MemoryTreeSerializer)
    def get(self, request: Request) -> Response:
        """The tree cluster > node > GPU > tenant > instance > segment as it is now, in MiB, and its figures."""
        node: UUID | None = self.query.get("node")
        try:
            tree = read_tree(now=timezone.now(), node_id=node)
        except Node.DoesNotExist as error:
            raise NotFound from error
        return Response(_told(tree))


class TenantGpuMemoryView(ControlView):
    """A tenant's own memory."""

    @extend_schema(operation_id="tenant_gpu_memory", responses=TenantMemorySerializer)
    def get(self, request: Request, slug: str) -> Response:
        """The tenant's instances on the GPUs where it has any; of others, how much they have claimed there."""
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.USAGE)
        now = timezone.now()
        quotas = [asdict(quota) for quota in read_tenant_quotas(tenant, now=now)]
        return Response(_told(read_tenant_tree(tenant, now=now)) | {"quotas": quotas})


def _told(tree: MemoryTree) -> dict[str, Any]:
    sums = _sums(tree)
    return {
        "at": timezone.now(),
        "scope": tree.scope,
        "simulated": tree.simulated,
        "summary": asdict(summarise(tree)),
        "nodes": [
            {
                "parent_index": parent,
                "kind": kind,
                "id": key,
                "name": label,
                "extra": {**extra, **tree.figures.get(at, {})},
                "mib": sums[at],
            }
            for at, (parent, kind, key, label, extra) in enumerate(tree.nodes)
        ],
    }


def _sums(tree: MemoryTree) -> list[int]:
    """MiB of every node: children come after their parents, so they are added from the end."""
    sums = [0] * len(tree.nodes)
    values = iter(tree.values)
    for at, node in enumerate(tree.nodes):
        if node[1] == "segment":
            sums[at] = next(values)
    for at in range(len(sums) - 1, 0, -1):
        sums[tree.nodes[at][0]] += sums[at]
    return sums

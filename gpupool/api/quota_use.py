"""The control API of what tenants hold and use of GPUs, against what they may hold."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from gpupool.api.base import PoolView
from gpupool.reads.quota_use import QuotaUse, read_quota_use


class QuotaUseSerializer(serializers.Serializer[Any]):
    """One limit on GPUs or their memory."""

    limit_id = serializers.UUIDField(source="quota.quota_id")
    metric = serializers.CharField(source="quota.metric", help_text="gpus or gpu_memory")
    model = serializers.CharField(source="quota.model", help_text="the one model that it counts; empty: all")
    tenants = serializers.SerializerMethodField(help_text="whose holdings it counts; null: everybody's")
    amount = serializers.IntegerField(source="quota.amount", help_text="GPUs or bytes that may be held")
    held = serializers.IntegerField(help_text="GPUs or bytes that are claimed")
    used_bytes = serializers.IntegerField(
        allow_null=True, help_text="what their processes have of the GPUs now; null: not all of them tell"
    )

    def get_tenants(self, row: QuotaUse) -> list[str] | None:
        return None if row.quota.tenants is None else sorted(map(str, row.quota.tenants))


class QuotaUseListSerializer(serializers.Serializer[Any]):
    results = QuotaUseSerializer(many=True)


class QuotaUseView(PoolView):
    """What is held and used of what may be held."""

    @extend_schema(operation_id="placement_quotas_list", responses=QuotaUseListSerializer)
    def get(self, request: Request) -> Response:
        """Every limit of the metrics `gpus` and `gpu_memory`, with what is claimed, and in use now."""
        return Response(QuotaUseListSerializer({"results": read_quota_use(timezone.now())}).data)

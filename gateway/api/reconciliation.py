"""The control API of the comparison of the ledger with the engines' own counters."""

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from core.api.paging import NewestFirst
from gateway.models import EngineDrift
from gateway.selectors import list_drift
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.policies.roles import Action, Object


class DriftSerializer(serializers.ModelSerializer[EngineDrift]):
    """One endpoint between two readings, in tokens; null is what the engine does not say."""

    difference_input = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Engine less ledger, of what the engine counts as input."
    )
    difference_output = serializers.IntegerField(read_only=True, allow_null=True, help_text="Engine less ledger.")
    explained = serializers.BooleanField(
        read_only=True,
        allow_null=True,
        help_text="Whether requests that were under way may be all that differs; null when the engine restarted.",
    )

    class Meta:
        model = EngineDrift
        fields = (
            "id", "instance_id", "engine", "model", "since", "until", "restarted", "requests", "ledger_input",
            "ledger_cached", "ledger_output", "estimated_output", "engine_input", "engine_output", "engine_cached",
            "without_cached", "difference_input", "difference_output", "tolerance_input", "tolerance_output",
            "explained",
        )  # fmt: skip
        read_only_fields = fields


class DriftQuery(Query):
    instance_id = serializers.UUIDField(required=False)
    engine = serializers.CharField(required=False, max_length=32)
    model = serializers.CharField(required=False, max_length=200)
    restarted = serializers.BooleanField(required=False)
    since = serializers.DateTimeField(required=False, help_text="Windows that ended then or later.")


class ReconciliationView(ControlView, ListAPIView[EngineDrift]):
    """The ledger beside what engines have counted."""

    serializer_class = DriftSerializer
    pagination_class = NewestFirst
    query_class = DriftQuery
    queryset = EngineDrift.objects.none()

    def get_queryset(self) -> QuerySet[EngineDrift]:
        return list_drift(**self.query)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first, one row for each endpoint and time between readings; for platform roles."""
        platform_access(request, Action.VIEW, Object.RECONCILIATION)
        return super().get(request, *args, **kwargs)

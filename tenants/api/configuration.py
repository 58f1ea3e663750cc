"""The control API of configuration: its history, and the way back."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestNumberFirst
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.models import ConfigurationChange
from tenants.models.configuration import HISTORY_TABLES
from tenants.policies.roles import Action, Object
from tenants.policies.rollback import Kept, Step
from tenants.reads.audit import search_history
from tenants.services.configuration import roll_back_configuration

_BIGINT: Final = 2**63
_TABLES: Final = sorted(HISTORY_TABLES)


class ConfigurationChangeSerializer(serializers.ModelSerializer[ConfigurationChange]):
    """One row before and after one write; null where it was not there."""

    epoch = serializers.IntegerField(source="id", read_only=True)
    before = serializers.DictField(read_only=True, allow_null=True)
    after = serializers.DictField(read_only=True, allow_null=True)

    class Meta:
        model = ConfigurationChange
        fields = ("epoch", "at", "table", "object_id", "tenant_id", "before", "after")
        read_only_fields = fields


class HistoryQuery(Query):
    table = serializers.ChoiceField(choices=_TABLES, required=False)
    object_id = serializers.UUIDField(required=False)
    tenant_id = serializers.UUIDField(required=False)
    since = serializers.DateTimeField(required=False, help_text="This moment and later.")
    until = serializers.DateTimeField(required=False, help_text="Before this moment.")


@extend_schema_field(
    {
        "oneOf": [
            {"type": "integer", "minimum": 1, "maximum": _BIGINT - 1, "description": "An epoch of the history."},
            {"type": "string", "format": "uuid", "description": "An event of the audit log."},
            {"type": "string", "format": "date-time", "description": "A moment."},
        ]
    }
)
class PointField(serializers.Field[Any, Any, Any, Any]):
    """An epoch, an audit event's id or a moment."""

    def to_internal_value(self, data: Any) -> int | UUID | datetime:
        if isinstance(data, int) and not isinstance(data, bool) and 0 < data < _BIGINT:
            return data
        if isinstance(data, str):
            try:
                return UUID(data)
            except ValueError:
                pass
            try:
                moment = parse_datetime(data)
            except ValueError:
                moment = None
            if moment is not None and moment.tzinfo is not None and moment.year > 1:
                return moment
        raise serializers.ValidationError("Give an epoch, an audit event's id, or a moment with its offset from UTC.")

    def to_representation(self, value: Any) -> Any:
        return value


class RollbackSerializer(serializers.Serializer[Any]):
    to = PointField()
    before = serializers.BooleanField(
        required=False, default=False, help_text="Back to right before it, instead of right after it."
    )
    dry_run = serializers.BooleanField(required=False, default=False, help_text="Tell what would be done; do nothing.")


class StepSerializer(serializers.Serializer[Any]):
    verb = serializers.ChoiceField(choices=("insert", "update", "delete"))
    table = serializers.ChoiceField(choices=_TABLES)
    object_id = serializers.CharField(help_text="Empty for a new price.")
    before = serializers.DictField()
    after = serializers.DictField()


class KeptSerializer(serializers.Serializer[Any]):
    table = serializers.ChoiceField(choices=_TABLES)
    object_id = serializers.CharField()
    reason = serializers.CharField()


class RolledBackSerializer(serializers.Serializer[Any]):
    """What was done (or would be), and what stays as it is, with reasons."""

    dry_run = serializers.BooleanField()
    steps = StepSerializer(many=True)
    kept = KeptSerializer(many=True)


class HistoryView(ControlView, ListAPIView[ConfigurationChange]):
    """Every change of limits, grants, prices, issuers, tenants and keys, newest first; for platform roles."""

    serializer_class = ConfigurationChangeSerializer
    pagination_class = NewestNumberFirst
    query_class = HistoryQuery
    queryset = ConfigurationChange.objects.none()

    def get_queryset(self) -> QuerySet[ConfigurationChange]:
        platform_access(self.request, Action.VIEW, Object.CONFIGURATION)
        return search_history(**self.query)


class RollbackView(IdempotentCreate, ControlView):
    """Bring configuration back to how it was; operators only."""

    @extend_schema(request=RollbackSerializer, responses=RolledBackSerializer)
    def post(self, request: Request) -> Response:
        """In force within a second everywhere. Revocations are never undone."""
        platform_access(request, Action.CHANGE, Object.CONFIGURATION)
        done = roll_back_configuration(actor=self.actor, **self.parsed(RollbackSerializer))
        return Response({"dry_run": done.dry_run, "steps": _plain(done.steps), "kept": _plain(done.kept)})


def _plain(parts: Sequence[Step | Kept]) -> list[dict[str, Any]]:
    return [{name: getattr(part, name) for name in part.__slots__} for part in parts]

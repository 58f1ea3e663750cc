"""The control API of the audit log: who changed what, found by who, what, where and when; as pages and as CSV."""

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.csv import MEDIA_TYPE, csv_response
from core.api.filters import Query
from core.api.paging import NewestFirst
from tenants.api.access import platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.api.configuration import ConfigurationChangeSerializer
from tenants.models import AuditEvent
from tenants.policies.roles import Action, Object
from tenants.reads.audit import history_of, in_batches, search_audit

MOST_CSV_ROWS: Final = 200_000
_CSV_ROWS: Final = 50_000
_COLUMNS: Final = (
    "id", "at", "actor_kind", "actor_id", "action", "subject_type", "subject_id", "tenant_id", "request_id",
    "before", "after",
)  # fmt: skip


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    """One write: who did what to what, its values before and after, and the request that it was done by."""

    before = serializers.DictField(read_only=True)
    after = serializers.DictField(read_only=True)

    class Meta:
        model = AuditEvent
        fields = _COLUMNS
        read_only_fields = _COLUMNS


class AuditEventDetailSerializer(AuditEventSerializer):
    """With the configuration that the same transaction changed, row by row."""

    changes = serializers.SerializerMethodField()

    class Meta(AuditEventSerializer.Meta):
        fields = (*_COLUMNS, "changes")  # type: ignore[assignment]  # one more than the base's

    @extend_schema_field(ConfigurationChangeSerializer(many=True))
    def get_changes(self, event: AuditEvent) -> Any:
        return ConfigurationChangeSerializer(history_of(event), many=True).data


class TenantAuditQuery(Query):
    actor = serializers.UUIDField(required=False, help_text="The person, key or node that did it.")
    action = serializers.CharField(
        required=False, max_length=64, help_text="What the action begins with, for example limit. or api_key.revoked."
    )
    subject_type = serializers.CharField(required=False, max_length=64, help_text="For example tenants.ApiKey.")
    subject_id = serializers.UUIDField(required=False)
    request_id = serializers.CharField(required=False, max_length=64)
    since = serializers.DateTimeField(required=False, help_text="This moment and later.")
    until = serializers.DateTimeField(required=False, help_text="Before this moment.")


class AuditQuery(TenantAuditQuery):
    tenant_id = serializers.UUIDField(required=False)


class TenantAuditCsvQuery(TenantAuditQuery):
    limit = serializers.IntegerField(
        required=False,
        default=_CSV_ROWS,
        min_value=1,
        max_value=MOST_CSV_ROWS,
        help_text="Most rows; when so many come, ask for those before the last one's moment with `until`.",
    )


class AuditCsvQuery(AuditQuery, TenantAuditCsvQuery):
    pass


class AuditListView(ControlView, ListAPIView[AuditEvent]):
    """The audit log of the whole platform, newest first; for platform roles."""

    serializer_class = AuditEventSerializer
    pagination_class = NewestFirst
    query_class = AuditQuery
    queryset = AuditEvent.objects.none()

    def get_queryset(self) -> QuerySet[AuditEvent]:
        platform_access(self.request, Action.VIEW, Object.PLATFORM_AUDIT)
        return search_audit(**self.query)


class AuditCsvView(ControlView):
    """The same as a table."""

    query_class = AuditCsvQuery

    @extend_schema(responses={(200, MEDIA_TYPE): OpenApiTypes.STR})
    def get(self, request: Request) -> Any:
        platform_access(request, Action.VIEW, Object.PLATFORM_AUDIT)
        return _csv(request, self.query)


class AuditEventView(ControlView):
    """One row of the audit log; for platform roles."""

    @extend_schema(responses=AuditEventDetailSerializer)
    def get(self, request: Request, event_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.PLATFORM_AUDIT)
        event = AuditEvent.objects.filter(pk=event_id).first()
        if event is None:
            raise NotFound
        return Response(AuditEventDetailSerializer(event).data)


class TenantAuditListView(ControlView, ListAPIView[AuditEvent]):
    """What was done in one tenant, newest first; for its owners and admins, and for platform roles."""

    serializer_class = AuditEventSerializer
    pagination_class = NewestFirst
    query_class = TenantAuditQuery
    queryset = AuditEvent.objects.none()

    def get_queryset(self) -> QuerySet[AuditEvent]:
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.TENANT_AUDIT)
        return search_audit(tenant_id=tenant.pk, **self.query)


class TenantAuditCsvView(ControlView):
    """The same as a table."""

    query_class = TenantAuditCsvQuery

    @extend_schema(responses={(200, MEDIA_TYPE): OpenApiTypes.STR})
    def get(self, request: Request, slug: str) -> Any:
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.TENANT_AUDIT)
        return _csv(request, {**self.query, "tenant_id": tenant.pk})


def _csv(request: Request, query: dict[str, Any]) -> Any:
    limit = query.pop("limit")
    return csv_response(request._request, "audit.csv", _COLUMNS, _rows(in_batches(search_audit(**query), limit=limit)))


def _rows(events: Iterator[AuditEvent]) -> Iterator[list[Any]]:
    for event in events:
        yield [
            *(getattr(event, name) if name != "at" else event.at.isoformat() for name in _COLUMNS[:-2]),
            json.dumps(event.before, ensure_ascii=False),
            json.dumps(event.after, ensure_ascii=False),
        ]

"""The control API of alerts about objectives and of silences: of the installation, and of one tenant."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gateway.api.objectives import SEVERITIES, scope_of
from gateway.models import ObjectiveAlert, Silence
from gateway.policies.slo_alerts import AlertState
from gateway.reads.slo import list_alerts, list_objectives, list_silences
from gateway.services.objective_alerts import acknowledge_alert, create_silence, end_silence
from tenants.api.base import ControlView
from tenants.policies.roles import Action
from tenants.services.errors import InvalidInput

_STATES = [one.value for one in AlertState]


class ObjectiveAlertSerializer(serializers.ModelSerializer[ObjectiveAlert]):
    """A pair of windows that burns, or burned, above its threshold."""

    objective = serializers.UUIDField(source="objective_id", read_only=True)
    objective_name = serializers.CharField(source="objective.name", read_only=True)
    tenant = serializers.SlugField(source="objective.tenant.slug", read_only=True, allow_null=True, default=None)
    severity = serializers.ChoiceField(choices=SEVERITIES, read_only=True)
    state = serializers.ChoiceField(choices=_STATES, read_only=True)
    acknowledged_by = serializers.UUIDField(source="acknowledged_by_id", read_only=True, allow_null=True)

    class Meta:
        model = ObjectiveAlert
        fields = (
            "id", "objective", "objective_name", "tenant", "pair", "severity", "state", "long_burn", "short_burn",
            "opened_at", "told", "told_at", "acknowledged_at", "acknowledged_by", "resolved_at",
        )  # fmt: skip
        read_only_fields = fields


class AlertQuery(Query):
    state = serializers.ChoiceField(choices=_STATES, required=False)
    severity = serializers.ChoiceField(choices=SEVERITIES, required=False)
    objective = serializers.UUIDField(required=False)


class SilenceSerializer(serializers.ModelSerializer[Silence]):
    """Nobody is told meanwhile."""

    objective = serializers.UUIDField(source="objective_id", read_only=True, allow_null=True)
    tenant = serializers.SlugField(source="tenant.slug", read_only=True, allow_null=True, default=None)
    created_by = serializers.UUIDField(source="created_by_id", read_only=True, allow_null=True)

    class Meta:
        model = Silence
        fields = ("id", "objective", "tenant", "reason", "starts_at", "ends_at", "created_by", "created_at")
        read_only_fields = fields


class NewSilenceSerializer(serializers.Serializer[Any]):
    objective = serializers.UUIDField(required=False, allow_null=True, help_text="All where it is left out.")
    reason = serializers.CharField(max_length=200)
    starts_at = serializers.DateTimeField(required=False, help_text="Now where it is left out.")
    ends_at = serializers.DateTimeField(help_text="Within 30 days.")


class AlertListView(ControlView, ListAPIView[ObjectiveAlert]):
    """Alerts about objectives, open and over."""

    serializer_class = ObjectiveAlertSerializer
    pagination_class = NewestFirst
    query_class = AlertQuery

    def get_queryset(self) -> QuerySet[ObjectiveAlert]:
        if getattr(self, "swagger_fake_view", False):
            return ObjectiveAlert.objects.none()
        rows = list_alerts(scope_of(self.request, self.kwargs.get("slug"), Action.VIEW))
        filters = dict(self.query)
        if "objective" in filters:
            filters["objective_id"] = filters.pop("objective")
        return rows.filter(**filters)


class AlertAcknowledgeView(IdempotentCreate, ControlView):
    """Somebody is at it."""

    @extend_schema(request=None, responses={200: ObjectiveAlertSerializer})
    def post(self, request: Request, alert_id: UUID, slug: str | None = None) -> Response:
        """It is told no more, and ends when the burning does."""
        tenant = scope_of(request, slug, Action.CHANGE)
        found = list_alerts(tenant).filter(pk=alert_id).first()
        if found is None:
            raise NotFound
        if tenant is not None and not found.objective.tenants_own:
            raise PermissionDenied("The platform promises this: its operators see to it.")
        alert = acknowledge_alert(alert_id, actor=self.actor, now=timezone.now())
        return Response(ObjectiveAlertSerializer(alert).data)


class SilenceListView(IdempotentCreate, ControlView, ListAPIView[Silence]):
    """Silences: the platform's, or a tenant's over what it set up itself."""

    serializer_class = SilenceSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Silence]:
        if getattr(self, "swagger_fake_view", False):
            return Silence.objects.none()
        return list_silences(scope_of(self.request, self.kwargs.get("slug"), Action.VIEW))

    @extend_schema(request=NewSilenceSerializer, responses={201: SilenceSerializer})
    def post(self, request: Request, slug: str | None = None) -> Response:
        """Alerts still open and end; what still burns when it ends is told then."""
        tenant = scope_of(request, slug, Action.CHANGE)
        values = self.parsed(NewSilenceSerializer)
        objective_id = values.pop("objective", None)
        objective = None
        if objective_id is not None:
            objective = list_objectives(tenant).filter(pk=objective_id).first()
            if objective is None:
                raise InvalidInput("objective", "There is no such objective here.")
        owner = tenant
        if tenant is None and objective is not None and objective.tenants_own:
            owner = objective.tenant
        made = create_silence(objective=objective, tenant=owner, actor=self.actor, now=timezone.now(), **values)
        return tagged(SilenceSerializer(made).data, status=status.HTTP_201_CREATED)


class SilenceView(ControlView):
    """One silence."""

    @extend_schema(responses={200: SilenceSerializer})
    def delete(self, request: Request, silence_id: UUID, slug: str | None = None) -> Response:
        """End it now; it stays on record."""
        tenant = scope_of(request, slug, Action.CHANGE)
        if not list_silences(tenant).filter(pk=silence_id).exists():
            raise NotFound
        return Response(SilenceSerializer(end_silence(silence_id, actor=self.actor, now=timezone.now())).data)

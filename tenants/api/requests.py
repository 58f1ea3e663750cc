"""The control API of requests for more: tenants ask, the platform decides."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied, ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import selectors
from tenants.api.access import platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.models import AccessRequest, ApiKey, Metric, RequestKind, Window
from tenants.policies.quota import MOST
from tenants.policies.rbac import ACTIONS
from tenants.policies.requests import RequestState
from tenants.policies.roles import DEVELOPER, Action, Object
from tenants.reads import notices
from tenants.services import requests

_STATES = [state.value for state in RequestState]


class WhatSerializer(serializers.Serializer[Any]):
    """What is asked for: members of the other kind are missing."""

    model = serializers.CharField()
    actions = serializers.ListField(child=serializers.CharField(), required=False)
    metric = serializers.CharField(required=False)
    window = serializers.CharField(required=False)
    amount = serializers.IntegerField(required=False)
    key = serializers.UUIDField(required=False, allow_null=True)
    subtree = serializers.BooleanField(required=False)


class AccessRequestSerializer(serializers.ModelSerializer[AccessRequest]):
    """A request, and what became of it."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    what = WhatSerializer(read_only=True)
    state = serializers.ChoiceField(choices=_STATES, read_only=True)
    requested_by = serializers.UUIDField(source="requested_by_id", read_only=True, allow_null=True)
    decided_by = serializers.UUIDField(source="decided_by_id", read_only=True, allow_null=True)

    class Meta:
        model = AccessRequest
        fields = (
            "id", "tenant", "kind", "what", "reason", "until", "state", "requested_by", "decided_by", "decided_at",
            "answer", "grant_id", "limit_id", "created_at",
        )  # fmt: skip
        read_only_fields = fields

    def to_representation(self, instance: AccessRequest) -> dict[str, Any]:
        told: dict[str, Any] = super().to_representation(instance)
        return {**told, "what": dict(instance.what)}


class NewRequestSerializer(serializers.Serializer[Any]):
    """Of a model: `model`, and `actions`. Of a limit: `metric`, `window`, `amount`, and its scope."""

    kind = serializers.ChoiceField(choices=RequestKind.choices)
    reason = serializers.CharField(max_length=2000)
    until = serializers.DateTimeField(required=False, allow_null=True, default=None)
    model = serializers.CharField(required=False, max_length=200, allow_blank=True)
    actions = serializers.ListField(
        child=serializers.ChoiceField(choices=sorted(ACTIONS)), required=False, min_length=1, max_length=len(ACTIONS)
    )
    metric = serializers.ChoiceField(choices=Metric.choices, required=False)
    window = serializers.ChoiceField(choices=Window.choices, required=False)
    amount = serializers.IntegerField(required=False, min_value=1, max_value=MOST)
    key = serializers.UUIDField(required=False, allow_null=True)
    subtree = serializers.BooleanField(required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Everything that the kind needs, and nothing that it does not have."""
        of_model, of_limit = {"actions"}, {"metric", "window", "amount", "key", "subtree"}
        needed, other = (
            ({"model"}, of_limit) if values["kind"] == "model" else ({"metric", "window", "amount"}, of_model)
        )
        errors = {name: ["This is needed."] for name in sorted(needed - set(values))}
        errors |= {name: [f"A request of a {values['kind']} has none."] for name in sorted(other & set(values))}
        if errors:
            raise ValidationError(errors)
        return values


class DecisionSerializer(serializers.Serializer[Any]):
    approved = serializers.BooleanField()
    answer = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")
    amount = serializers.IntegerField(
        required=False, min_value=1, max_value=MOST, help_text="Instead of what was asked for; of a limit."
    )
    until = serializers.DateTimeField(required=False, help_text="Instead of what was asked for.")


class RequestQuery(Query):
    state = serializers.ChoiceField(choices=_STATES, required=False)


class TenantRequestListView(IdempotentCreate, ControlView, ListAPIView[AccessRequest]):
    """What a tenant asked for."""

    serializer_class = AccessRequestSerializer
    pagination_class = NewestFirst
    query_class = RequestQuery

    def get_queryset(self) -> QuerySet[AccessRequest]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return AccessRequest.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.REQUEST)
        return notices.list_requests(tenant, state=self.query.get("state"))

    @extend_schema(request=NewRequestSerializer, responses={201: AccessRequestSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Ask for a model, or for more than a limit allows, for good or until a time."""
        tenant, _ = tenant_access(request, slug, Action.CREATE, Object.REQUEST)
        values = self.parsed(NewRequestSerializer)
        kind = values.pop("kind")
        if kind == RequestKind.MODEL:
            if "actions" in values:
                values["actions"] = tuple(values["actions"])
            made = requests.request_model(tenant, actor=self.actor, **values)
        else:
            key_id = values.pop("key", None)
            try:
                key = selectors.get_api_key(tenant, key_id) if key_id is not None else None
            except ApiKey.DoesNotExist as error:
                raise ValidationError({"key": ["There is no such key in this tenant."]}) from error
            made = requests.request_limit(tenant, actor=self.actor, key=key, **values)
        return tagged(AccessRequestSerializer(made).data, status=status.HTTP_201_CREATED)


class TenantRequestView(ControlView):
    """One request of a tenant."""

    @extend_schema(responses=AccessRequestSerializer)
    def get(self, request: Request, slug: str, request_id: UUID) -> Response:
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.REQUEST)
        return tagged(AccessRequestSerializer(_request(request_id, tenant=tenant)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, request_id: UUID) -> Response:
        """Withdraw it, while nobody has decided; it stays listed. Developers withdraw their own."""
        tenant, role = tenant_access(request, slug, Action.DELETE, Object.REQUEST)
        found = _request(request_id, tenant=tenant)
        own = found.requested_by_id == self.person.pk
        if role == DEVELOPER and not own and not self.person.may_operate:
            raise PermissionDenied("Your role in this tenant may withdraw only your own requests.")
        requests.withdraw_request(found.pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RequestListView(ControlView, ListAPIView[AccessRequest]):
    """What all tenants ask for: for those who decide."""

    serializer_class = AccessRequestSerializer
    pagination_class = NewestFirst
    query_class = RequestQuery

    def get_queryset(self) -> QuerySet[AccessRequest]:
        if getattr(self, "swagger_fake_view", False):
            return AccessRequest.objects.none()
        platform_access(self.request, Action.VIEW, Object.REQUEST)
        return notices.list_requests(state=self.query.get("state"))


class RequestView(ControlView):
    """One request of any tenant."""

    @extend_schema(responses=AccessRequestSerializer)
    def get(self, request: Request, request_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.REQUEST)
        return tagged(AccessRequestSerializer(_request(request_id)).data)


class DecisionView(ControlView):
    """The decision on a request."""

    conditional = ("POST",)

    @extend_schema(request=DecisionSerializer, responses=AccessRequestSerializer)
    def post(self, request: Request, request_id: UUID) -> Response:
        """Approve it, which grants it at once, or decline it. Of two at once the second is told 409 or 412."""
        platform_access(request, Action.CREATE, Object.DECISION)
        values = self.parsed(DecisionSerializer)
        with transaction.atomic():
            try:
                locked = requests.lock_request(request_id)
            except AccessRequest.DoesNotExist as error:
                raise NotFound from error
            check_match(request, AccessRequestSerializer(locked).data)
            decided = requests.decide_request(request_id, actor=self.actor, **values)
        return tagged(AccessRequestSerializer(decided).data)


def _request(request_id: UUID, **of: Any) -> AccessRequest:
    try:
        return notices.get_request(request_id, **of)
    except AccessRequest.DoesNotExist as error:
        raise NotFound from error

"""The control API of grants: what of the models a tenant, its keys and its tokens' subjects may use."""

from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import services
from tenants.api.access import tenant_access
from tenants.api.base import ControlView
from tenants.models import ApiKey, Grant, GrantEffect, PrincipalKind, Tenant
from tenants.policies.rbac import ACTIONS
from tenants.policies.roles import Action, Object
from tenants.principal import subject_uuid
from tenants.services import InvalidInput


class GrantSerializer(serializers.ModelSerializer[Grant]):
    """Deny wins over allow; what no grant allows is denied."""

    principal = serializers.ChoiceField(source="principal_kind", choices=PrincipalKind.choices, read_only=True)
    actions = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = Grant
        fields = (
            "id", "principal", "principal_id", "model_pattern", "actions", "effect", "expires_at", "created_at",
        )  # fmt: skip
        read_only_fields = fields


class NewGrantSerializer(serializers.Serializer[Any]):
    """To the whole tenant, or with `key` to one key, or with `subject_id` or `issuer` and `subject` to a subject."""

    model_pattern = serializers.CharField(max_length=200, help_text="A model's name, or a pattern: *, ?, [abc].")
    actions = serializers.ListField(
        child=serializers.ChoiceField(choices=[*sorted(ACTIONS), "*"]), required=False, default=["infer", "embed"]
    )
    effect = serializers.ChoiceField(choices=GrantEffect.choices, required=False, default=GrantEffect.ALLOW.value)
    key = serializers.UUIDField(required=False, allow_null=True, default=None)
    subject_id = serializers.UUIDField(required=False, allow_null=True, default=None)
    issuer = serializers.CharField(max_length=500, required=False, default="", help_text="The claim iss.")
    subject = serializers.CharField(max_length=1000, required=False, default="", help_text="The claim sub; not kept.")
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class GrantQuery(Query):
    principal = serializers.ChoiceField(choices=PrincipalKind.choices, required=False)
    principal_id = serializers.UUIDField(required=False)
    effect = serializers.ChoiceField(choices=GrantEffect.choices, required=False)
    model_pattern = serializers.CharField(required=False, max_length=200, help_text="As it was written.")
    expired = serializers.BooleanField(required=False, help_text="Those that are over too, until they are cleaned up.")


class GrantListView(IdempotentCreate, ControlView, ListAPIView[Grant]):
    """A tenant's grants."""

    serializer_class = GrantSerializer
    pagination_class = NewestFirst
    query_class = GrantQuery

    def get_queryset(self) -> QuerySet[Grant]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Grant.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.GRANT)
        said = {**self.query}
        grants = Grant.objects.filter(tenant=tenant)
        if not said.pop("expired", False):
            grants = grants.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))
        if "principal" in said:
            said["principal_kind"] = said.pop("principal")
        return grants.filter(**said)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewGrantSerializer, responses={201: GrantSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Allow or deny; of the same principal, pattern and effect there is one, which is replaced."""
        tenant, _ = tenant_access(request, slug, Action.CREATE, Object.GRANT)
        values = self.parsed(NewGrantSerializer)
        issuer, subject = values.pop("issuer"), values.pop("subject")
        if bool(issuer) != bool(subject) or (subject and values["subject_id"] is not None):
            raise InvalidInput("subject", "Name a subject by issuer and subject, or by subject_id.")
        if subject:
            values["subject_id"] = subject_uuid(issuer, subject)
        key = values.pop("key")
        grant = services.grant_model(
            tenant, actor=self.actor, key=_key(tenant, key) if key is not None else None, **values
        )
        return Response(GrantSerializer(grant).data, status=status.HTTP_201_CREATED)


class GrantView(ControlView):
    """One grant."""

    @extend_schema(responses=GrantSerializer)
    def get(self, request: Request, slug: str, grant_id: UUID) -> Response:
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.GRANT)
        return Response(GrantSerializer(_grant(tenant, grant_id)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, grant_id: UUID) -> Response:
        """Remove it, within a second everywhere."""
        tenant, _ = tenant_access(request, slug, Action.DELETE, Object.GRANT)
        services.remove_grant(_grant(tenant, grant_id).pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _grant(tenant: Tenant, grant_id: UUID) -> Grant:
    try:
        return Grant.objects.get(tenant=tenant, pk=grant_id)
    except Grant.DoesNotExist as error:
        raise NotFound from error


def _key(tenant: Tenant, key_id: UUID) -> ApiKey:
    try:
        return ApiKey.objects.get(tenant=tenant, pk=key_id)
    except ApiKey.DoesNotExist as error:
        raise InvalidInput("key", "There is no such key in this tenant.") from error

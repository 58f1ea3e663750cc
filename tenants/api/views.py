"""The control API of tenants and keys: views parse, call one service, render."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from core.api.paging import NewestFirst
from core.api.request_ids import request_id_of
from tenants import selectors, services
from tenants.actor import Actor, user_actor
from tenants.api.access import platform_access, tenant_access
from tenants.api.permissions import SignedIn
from tenants.api.serializers import (
    NewTenantSerializer,
    TenantChangeSerializer,
    TenantSerializer,
)
from tenants.models import Tenant, TenantState, User
from tenants.policies.roles import Action, Object
from tenants.services import InvalidInput


def _user(request: Request) -> User:
    assert isinstance(request.user, User)  # the permission class let no other in
    return request.user


def _actor(request: Request) -> Actor:
    return user_actor(_user(request).pk, request_id=request_id_of(request))


def _parsed(serializer: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    parsed = serializer(data=request.data)
    parsed.is_valid(raise_exception=True)
    values: dict[str, Any] = parsed.validated_data
    return values


def _tenant(request: Request, slug: str) -> Tenant:
    """Raises NotFound for outsiders, as if there were no such tenant."""
    try:
        return selectors.get_tenant_for(_user(request), slug)
    except Tenant.DoesNotExist as error:
        raise NotFound from error


class TenantListView(ListAPIView[Tenant]):
    """Tenants that one belongs to; all of them for platform roles."""

    permission_classes = (SignedIn,)
    serializer_class = TenantSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Tenant]:
        return selectors.list_tenants_for(_user(self.request))

    @extend_schema(request=NewTenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        """Create a tenant; operators only."""
        platform_access(request, Action.CREATE, Object.NEW_TENANT)
        try:
            tenant = services.create_tenant(actor=_actor(request), **_parsed(NewTenantSerializer, request))
        except InvalidInput as error:
            raise ValidationError({error.field: [error.message]}) from error
        return Response(TenantSerializer(tenant).data, status=status.HTTP_201_CREATED)


class TenantView(APIView):
    """One tenant."""

    permission_classes = (SignedIn,)

    @extend_schema(responses=TenantSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """The tenant, for its members and for platform roles."""
        return Response(TenantSerializer(_tenant(request, slug)).data)

    @extend_schema(request=TenantChangeSerializer, responses=TenantSerializer)
    def patch(self, request: Request, slug: str) -> Response:
        """Change how long its stored responses are kept; for its owners and admins, and for operators."""
        tenant, _ = tenant_access(request, slug, Action.CHANGE, Object.TENANT)
        days = _parsed(TenantChangeSerializer, request)["response_retention_days"]
        try:
            tenant = services.set_response_retention(tenant, days, actor=_actor(request))
        except InvalidInput as error:
            raise ValidationError({error.field: [error.message]}) from error
        return Response(TenantSerializer(tenant).data)


class _TenantStateView(APIView):
    permission_classes = (SignedIn,)
    state: TenantState

    @extend_schema(request=None, responses=TenantSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Operators only; in force within a second everywhere."""
        tenant, _ = tenant_access(request, slug, Action.CHANGE, Object.SUSPENSION)
        tenant = services.set_tenant_state(tenant.pk, self.state, actor=_actor(request))
        return Response(TenantSerializer(tenant).data)


class TenantSuspendView(_TenantStateView):
    """Refuse all requests of a tenant's keys."""

    state = TenantState.SUSPENDED


class TenantResumeView(_TenantStateView):
    """Take them again."""

    state = TenantState.ACTIVE

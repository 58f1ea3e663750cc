"""The control API of tenants: views parse, call services, render."""

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import services
from tenants.api.access import find_tenant, platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.api.serializers import NewTenantSerializer, TenantChangeSerializer, TenantQuery, TenantSerializer
from tenants.models import Tenant, TenantState, User
from tenants.policies.quota import CALENDAR
from tenants.policies.roles import Action, Object
from tenants.selectors import list_tenants_for
from tenants.services import InvalidInput
from tenants.services.departments import change_tenant, lock_tenant, set_parent
from tenants.services.erasure import erase_tenant


class TenantListView(IdempotentCreate, ControlView, ListAPIView[Tenant]):
    """Tenants that one belongs to; all of them for platform roles."""

    serializer_class = TenantSerializer
    pagination_class = NewestFirst
    query_class = TenantQuery
    queryset = Tenant.objects.none()

    def get_queryset(self) -> QuerySet[Tenant]:
        tenants = list_tenants_for(self.person).select_related("parent")
        names = {"parent": "parent__slug", "state": "state", "sla_tier": "sla_tier"}
        return tenants.filter(**{names[name]: value for name, value in self.query.items()})

    @extend_schema(request=NewTenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        """Create a tenant; operators only."""
        person = platform_access(request, Action.CREATE, Object.NEW_TENANT)
        values = self.parsed(NewTenantSerializer)
        parent = values.pop("parent")
        with transaction.atomic():
            tenant = services.create_tenant(actor=self.actor, **values)
            if parent is not None:
                tenant = set_parent(tenant.pk, _parent_id(person, parent), actor=self.actor)
        return tagged(TenantSerializer(tenant).data, status=status.HTTP_201_CREATED)


class TenantView(ControlView):
    """One tenant."""

    conditional = ("PATCH",)

    @extend_schema(responses=TenantSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """The tenant, for its members and for platform roles."""
        return tagged(TenantSerializer(find_tenant(request, slug).tenant).data)

    @extend_schema(request=TenantChangeSerializer, responses=TenantSerializer)
    def patch(self, request: Request, slug: str) -> Response:
        """Change its name, zone or retention; for its owners and admins, and for operators.

        Its tier and parent are the operators' to change, and so is the zone of a tenant with budgets by day or month,
        whose periods change with it.
        """
        found, _ = tenant_access(request, slug, Action.CHANGE, Object.TENANT)
        values = self.parsed(TenantChangeSerializer)
        moves, parent = "parent" in values, values.pop("parent", None)
        with transaction.atomic():
            tenant = lock_tenant(found.pk)
            check_match(request, TenantSerializer(tenant).data)
            if not self.person.may_operate:
                _refuse_what_is_the_operators(tenant, values, moves=moves)
            tenant = change_tenant(tenant.pk, actor=self.actor, **values)
            if moves:
                tenant = set_parent(tenant.pk, _parent_id(self.person, parent), actor=self.actor)
        return tagged(TenantSerializer(tenant).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str) -> Response:
        """Erase it, and its people who are nowhere else; superusers only. It cannot be undone.

        It must have been suspended for so long that nothing of it can be under way; 409 says what is in the way.
        """
        tenant, _ = tenant_access(request, slug, Action.DELETE, Object.PERSONAL_DATA)
        try:
            erase_tenant(tenant.pk, actor=self.actor)
        except Tenant.DoesNotExist as error:  # another was faster
            raise NotFound from error
        return Response(status=status.HTTP_204_NO_CONTENT)


def _refuse_what_is_the_operators(tenant: Tenant, values: dict[str, Any], *, moves: bool) -> None:
    if moves or values.get("sla_tier", tenant.sla_tier) != tenant.sla_tier:
        raise PermissionDenied("Only operators change a tenant's tier and parent.")
    zone = values.get("time_zone", tenant.time_zone)
    if zone != tenant.time_zone and tenant.limits.filter(window__in=CALENDAR).exists():
        raise PermissionDenied("This tenant has budgets, whose days and months would change: ask an operator.")


def _parent_id(person: User, slug: str | None) -> Any:
    if slug is None:
        return None
    parent = list_tenants_for(person).filter(slug=slug).first()
    if parent is None:
        raise InvalidInput("parent", "There is no such tenant.")
    return parent.pk


class _TenantStateView(ControlView):
    state: TenantState

    @extend_schema(request=None, responses=TenantSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Operators only; in force within a second everywhere."""
        tenant, _ = tenant_access(request, slug, Action.CHANGE, Object.SUSPENSION)
        services.set_tenant_state(tenant.pk, self.state, actor=self.actor)
        try:
            return tagged(TenantSerializer(Tenant.objects.select_related("parent").get(pk=tenant.pk)).data)
        except Tenant.DoesNotExist as error:
            raise NotFound from error


class TenantSuspendView(_TenantStateView):
    """Refuse all requests of a tenant's keys."""

    state = TenantState.SUSPENDED


class TenantResumeView(_TenantStateView):
    """Take them again."""

    state = TenantState.ACTIVE

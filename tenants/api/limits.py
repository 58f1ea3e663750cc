"""The control API of limits: the platform's, a tenant's, and what one would have blocked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
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
from tenants.models import ApiKey, Limit, Metric, Tenant, Window
from tenants.policies.quota import MOST, MOST_ALERTS
from tenants.policies.roles import Action, Object
from tenants.reads.limits import list_limits
from tenants.services import InvalidInput
from tenants.services.limits import boost_limit, change_limit, create_limit, delete_limit, lock_limit
from tenants.services.replay import Question, replay_limit
from tenants.standing import Standing, read_standings

_UNITS = "Money in millionths of the currency, GPU memory in bytes, else requests, tokens or GPUs."
_LIVE = ("standing",)  # changes on its own


class StandingSerializer(serializers.Serializer[Any]):
    used = serializers.IntegerField()
    reserved = serializers.IntegerField(help_text="By requests under way.")
    remaining = serializers.IntegerField()
    reset_seconds = serializers.IntegerField(help_text="Until all of it is back, if nothing more is used.")


class LimitSerializer(serializers.ModelSerializer[Limit]):
    """A limit; `standing` is null where it cannot be known now."""

    tenant = serializers.SlugField(source="tenant.slug", read_only=True, allow_null=True, default=None)
    key = serializers.UUIDField(source="key_id", read_only=True, allow_null=True)
    alert_shares = serializers.ListField(child=serializers.IntegerField(), read_only=True)
    standing = StandingSerializer(read_only=True, allow_null=True, default=None)

    class Meta:
        model = Limit
        fields = (
            "id", "tenant", "subtree", "key", "model", "metric", "window", "amount", "refill_per_second",
            "boost_amount", "boost_until", "alert_shares", "counts_from", "note", "created_at", "standing",
        )  # fmt: skip
        read_only_fields = fields


class LimitChangeSerializer(serializers.Serializer[Any]):
    """What can be changed of a limit; what it counts cannot."""

    amount = serializers.IntegerField(required=False, min_value=1, max_value=MOST, help_text=_UNITS)
    refill_per_second = serializers.FloatField(required=False, help_text="Of a bucket, and only of that.")
    alert_shares = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=100),
        required=False,
        max_length=MOST_ALERTS,
        help_text="Percent of a budget by day or month at which people are told.",
    )
    note = serializers.CharField(required=False, allow_blank=True, max_length=200)


class NewPlatformLimitSerializer(LimitChangeSerializer):
    metric = serializers.ChoiceField(choices=Metric.choices)
    window = serializers.ChoiceField(choices=Window.choices)
    amount = serializers.IntegerField(min_value=1, max_value=MOST, help_text=_UNITS)
    model = serializers.CharField(
        required=False, allow_blank=True, max_length=200, help_text="A model's name; empty for all together."
    )


class NewLimitSerializer(NewPlatformLimitSerializer):
    subtree = serializers.BooleanField(required=False, help_text="Departments' use counts too.")
    key = serializers.UUIDField(required=False, allow_null=True, help_text="Only this key's use.")


class BoostSerializer(serializers.Serializer[Any]):
    amount = serializers.IntegerField(min_value=1, max_value=MOST, help_text="More than the limit allows.")
    until = serializers.DateTimeField(help_text="When the limit is what it was; within a year.")


class TenantLimitQuery(Query):
    metric = serializers.ChoiceField(choices=Metric.choices, required=False)
    window = serializers.ChoiceField(choices=Window.choices, required=False)
    model = serializers.CharField(required=False, max_length=200)
    key = serializers.UUIDField(required=False)
    subtree = serializers.BooleanField(required=False)


class LimitQuery(TenantLimitQuery):
    tenant = serializers.SlugField(required=False, max_length=63)
    platform = serializers.BooleanField(required=False, help_text="Of all tenants together, or of single ones only.")


def _told(limit: Limit, standings: Mapping[UUID, Standing] | None = None) -> dict[str, Any]:
    found = (read_standings([limit.pk]) if standings is None else standings).get(limit.pk)
    return {**LimitSerializer(limit).data, "standing": asdict(found) if found else None}


def _bare(limit: Limit) -> dict[str, Any]:
    return dict(LimitSerializer(limit).data)


class _LimitPages(ControlView, ListAPIView[Limit]):
    """Pages of limits, with how they stand."""

    serializer_class = LimitSerializer
    pagination_class = NewestFirst
    queryset = Limit.objects.none()

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page: Sequence[Limit] = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        standings = read_standings([limit.pk for limit in page])
        return self.get_paginated_response([_told(limit, standings) for limit in page])


class LimitListView(IdempotentCreate, _LimitPages):
    """Limits of the whole platform and of all tenants; for platform roles."""

    query_class = LimitQuery

    def get_queryset(self) -> QuerySet[Limit]:
        platform_access(self.request, Action.VIEW, Object.PLATFORM_LIMIT)
        return list_limits(**self.query)

    @extend_schema(request=NewPlatformLimitSerializer, responses={201: LimitSerializer})
    def post(self, request: Request) -> Response:
        """Limit what all tenants use together; operators only. In force within a second."""
        platform_access(request, Action.CREATE, Object.PLATFORM_LIMIT)
        limit = create_limit(actor=self.actor, **self.parsed(NewPlatformLimitSerializer))
        return tagged(_told(limit), without=_LIVE, status=status.HTTP_201_CREATED)


class TenantLimitListView(IdempotentCreate, _LimitPages):
    """Limits of a tenant and its keys."""

    query_class = TenantLimitQuery

    def get_queryset(self) -> QuerySet[Limit]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Limit.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.LIMIT)
        return list_limits(tenant, **self.query)

    @extend_schema(request=NewLimitSerializer, responses={201: LimitSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Limit the tenant, with or without its departments, or one of its keys. In force within a second."""
        tenant, _ = tenant_access(request, slug, Action.CREATE, Object.LIMIT)
        values = self.parsed(NewLimitSerializer)
        key = _key_of(tenant, values.pop("key", None))
        limit = create_limit(tenant=tenant, key=key, actor=self.actor, **values)
        return tagged(_told(limit), without=_LIVE, status=status.HTTP_201_CREATED)


def _key_of(tenant: Tenant, key_id: UUID | None) -> ApiKey | None:
    if key_id is None:
        return None
    try:
        return selectors.get_api_key(tenant, key_id)
    except ApiKey.DoesNotExist as error:
        raise InvalidInput("key", "This tenant has no such key.") from error


class _OneLimit(ControlView):
    """Finds the limit that an address names, if the person may do `action` to it."""

    def tenant_of(self, action: Action) -> Tenant | None:
        """Whose limits the address is about; None for any."""
        if "slug" in self.kwargs:
            return tenant_access(self.request, self.kwargs["slug"], action, Object.LIMIT).tenant
        platform_access(self.request, action, Object.PLATFORM_LIMIT)
        return None

    def limit_for(self, action: Action, limit_id: UUID, *, lock: bool = False) -> Limit:
        """Raises NotFound for another tenant's."""
        tenant = self.tenant_of(action)
        try:
            limit = lock_limit(limit_id) if lock else Limit.objects.select_related("tenant").get(pk=limit_id)
        except Limit.DoesNotExist as error:
            raise NotFound from error
        if tenant is not None and limit.tenant_id != tenant.pk:
            raise NotFound
        return limit


class LimitView(_OneLimit):
    """One limit."""

    conditional = ("PATCH", "DELETE")

    @extend_schema(responses=LimitSerializer)
    def get(self, request: Request, limit_id: UUID, slug: str | None = None) -> Response:
        """The limit, and how it stands where that is known."""
        return tagged(_told(self.limit_for(Action.VIEW, limit_id)), without=_LIVE)

    @extend_schema(request=LimitChangeSerializer, responses=LimitSerializer)
    def patch(self, request: Request, limit_id: UUID, slug: str | None = None) -> Response:
        """Allow more or less; what was used already still counts. In force within a second."""
        self.tenant_of(Action.CHANGE)  # who may not is told so before what is wrong with the body
        values = self.parsed(LimitChangeSerializer)
        with transaction.atomic():
            limit = self.limit_for(Action.CHANGE, limit_id, lock=True)
            check_match(request, _bare(limit), without=_LIVE)
            limit = change_limit(limit.pk, actor=self.actor, **values)
        return tagged(_told(limit), without=_LIVE)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, limit_id: UUID, slug: str | None = None) -> Response:
        """What it held back passes from now on."""
        with transaction.atomic():
            limit = self.limit_for(Action.DELETE, limit_id, lock=True)
            check_match(request, _bare(limit), without=_LIVE)
            delete_limit(limit.pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class BoostView(_OneLimit):
    """More for a while."""

    conditional = ("PUT", "DELETE")

    @extend_schema(request=BoostSerializer, responses=LimitSerializer)
    def put(self, request: Request, limit_id: UUID, slug: str | None = None) -> Response:
        """Allow more until a moment; then the limit is by itself what it was."""
        self.tenant_of(Action.CHANGE)  # who may not is told so before what is wrong with the body
        values = self.parsed(BoostSerializer)
        with transaction.atomic():
            limit = self.limit_for(Action.CHANGE, limit_id, lock=True)
            check_match(request, _bare(limit), without=_LIVE)
            limit = boost_limit(limit.pk, actor=self.actor, **values)
        return tagged(_told(limit), without=_LIVE)

    @extend_schema(responses={200: LimitSerializer})
    def delete(self, request: Request, limit_id: UUID, slug: str | None = None) -> Response:
        """End it now."""
        with transaction.atomic():
            limit = self.limit_for(Action.CHANGE, limit_id, lock=True)
            check_match(request, _bare(limit), without=_LIVE)
            limit = boost_limit(limit.pk, amount=None, until=None, actor=self.actor)
        return tagged(_told(limit), without=_LIVE)


class ReplaySerializer(serializers.Serializer[Any]):
    """A limit that is thought about, and the time that it is tried on: the last seven days when it is not said."""

    tenant = serializers.SlugField(required=False, max_length=63, help_text="All tenants together when left out.")
    subtree = serializers.BooleanField(required=False, default=False)
    key = serializers.UUIDField(required=False, allow_null=True, default=None)
    model = serializers.CharField(required=False, allow_blank=True, default="", max_length=200)
    metric = serializers.ChoiceField(choices=Metric.choices)
    window = serializers.ChoiceField(choices=Window.choices)
    amount = serializers.IntegerField(min_value=1, max_value=MOST, help_text=_UNITS)
    refill_per_second = serializers.FloatField(required=False, allow_null=True, default=None)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)


class ReplayedSerializer(serializers.Serializer[Any]):
    """What would have been blocked. Near a limit the doors refuse a little more: they reserve before they know."""

    requests = serializers.IntegerField(help_text="That were put through it.")
    blocked = serializers.IntegerField()
    blocked_share = serializers.FloatField(help_text="0 to 1.")
    used = serializers.IntegerField(help_text="By all requests, in the metric's unit.")
    blocked_amount = serializers.IntegerField()
    first_blocked = serializers.ListField(child=serializers.DateTimeField(), help_text="The first ones' moments.")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    through = serializers.DateTimeField(
        allow_null=True, help_text="How far it was read when there were too many requests; null when all were."
    )


class ReplayView(ControlView):
    """What a limit would have blocked."""

    @extend_schema(request=ReplaySerializer, responses=ReplayedSerializer)
    def post(self, request: Request) -> Response:
        """Put the ledger's requests through a limit that need not exist. Nothing is changed.

        For members of the tenant; without a tenant for platform roles.
        """
        values = self.parsed(ReplaySerializer)
        slug, tenant = values.pop("tenant", None), None
        if slug is None:
            platform_access(request, Action.VIEW, Object.PLATFORM_LIMIT)
        else:
            tenant, _ = tenant_access(request, slug, Action.VIEW, Object.USAGE)
        key_id = values.pop("key")
        if key_id is not None and tenant is None:
            raise InvalidInput("key", "Name the key's tenant too.")
        key = _key_of(tenant, key_id) if tenant is not None else None
        until: datetime = values.pop("until", None) or timezone.now()
        since: datetime = values.pop("since", None) or until - timedelta(days=7)
        answer = replay_limit(Question(tenant=tenant, key=key, since=since, until=until, **values))
        outcome = answer.outcome
        body = {
            "requests": outcome.requests,
            "blocked": outcome.blocked,
            "blocked_share": outcome.blocked_share,
            "used": outcome.used,
            "blocked_amount": outcome.blocked_amount,
            "first_blocked": [datetime.fromtimestamp(at, UTC) for at in outcome.first],
            "since": since,
            "until": until,
            "through": answer.through,
        }
        return Response(ReplayedSerializer(body).data)

"""The control API of prices, adjustments, statements and shares of the pool's time."""

from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.csv import MEDIA_TYPE, csv_response
from core.api.etags import tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants.api.access import person_of, platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.models import Adjustment, AdjustmentKind, Price
from tenants.policies.money import DIGITS, amount_of, micros_of
from tenants.policies.pricing import PriceTag
from tenants.policies.roles import Action, Object, may
from tenants.reads.limits import gpu_shares, list_adjustments, list_prices
from tenants.reads.prices import priced_models_for, versions_of_others
from tenants.selectors import list_tenants_for
from tenants.services.adjustments import adjust_bill
from tenants.services.prices import set_price, withdraw_price
from tenants.statements import COLUMNS, Statement, build_statement, get_currency, list_months, statement_rows

_MILLION_TOKENS: Final = "Of the currency, per million tokens."
MOST_SHARES: Final = 1000


class MoneyField(serializers.DecimalField):
    """An amount of the installation's currency: told as text, taken as text or number, kept in whole millionths."""

    def __init__(self, **more: Any) -> None:
        super().__init__(max_digits=DIGITS + 7, decimal_places=DIGITS, **more)

    def to_internal_value(self, data: Any) -> Any:
        return micros_of(super().to_internal_value(data))

    def to_representation(self, value: Any) -> Any:
        return amount_of(value)


class PriceSerializer(serializers.ModelSerializer[Price]):
    input = MoneyField(source="input_micros", help_text=_MILLION_TOKENS, read_only=True)
    cached_input = MoneyField(source="cached_input_micros", help_text=_MILLION_TOKENS, read_only=True)
    output = MoneyField(source="output_micros", help_text=_MILLION_TOKENS, read_only=True)
    request = MoneyField(source="request_micros", read_only=True)
    gpu_second = MoneyField(source="gpu_second_micros", read_only=True)
    currency = serializers.SerializerMethodField()
    _currency: str | None = None

    class Meta:
        model = Price
        fields = (
            "id", "model", "version_id", "effective_from", "input", "cached_input", "output", "request", "gpu_second",
            "currency", "created_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_currency(self, price: Price) -> str:
        self._currency = self._currency or get_currency()  # read once for a page
        return self._currency


class NewPriceSerializer(serializers.Serializer[Any]):
    """Prices of a model, or of one of its versions. What is left out costs nothing."""

    model = serializers.CharField(max_length=200)
    version_id = serializers.UUIDField(required=False, allow_null=True, default=None)
    effective_from = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="From now on when it is not said; never in the past."
    )
    input = MoneyField(required=False, default=0, help_text=_MILLION_TOKENS)
    cached_input = MoneyField(
        required=False, allow_null=True, default=None, help_text=_MILLION_TOKENS + " As uncached when it is not said."
    )
    output = MoneyField(required=False, default=0, help_text=_MILLION_TOKENS)
    request = MoneyField(required=False, default=0)
    gpu_second = MoneyField(required=False, default=0, help_text="For shares of the pool's time, which are not billed.")


class PriceQuery(Query):
    model = serializers.CharField(required=False, max_length=200)
    version_id = serializers.UUIDField(required=False)
    future = serializers.BooleanField(required=False, help_text="Only those not in effect yet, or only the others.")


class PriceListView(IdempotentCreate, ControlView, ListAPIView[Price]):
    """The price book."""

    serializer_class = PriceSerializer
    pagination_class = NewestFirst
    query_class = PriceQuery
    queryset = Price.objects.none()

    def get_queryset(self) -> QuerySet[Price]:
        person = person_of(self.request)
        reads = may(Action.VIEW, Object.PRICE, platform_role=person.active_platform_role, tenant_role=None)
        if not reads and not list_tenants_for(person).exists():
            raise PermissionDenied("Prices are for members of a tenant.")
        prices = list_prices(**self.query)
        if reads:
            return prices
        prices = prices.filter(model__in=priced_models_for(person, timezone.now()))
        return prices.exclude(version_id__isnull=False, version_id__in=versions_of_others(person))

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest entry first: all for platform roles, those of models that their tenants may use for members."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewPriceSerializer, responses={201: PriceSerializer})
    def post(self, request: Request) -> Response:
        """Add to the book; operators only. What was used already keeps its cost."""
        platform_access(request, Action.CREATE, Object.PRICE)
        values = self.parsed(NewPriceSerializer)
        cached = values["cached_input"]
        tag = PriceTag(
            input_micros=values["input"],
            cached_input_micros=values["input"] if cached is None else cached,
            output_micros=values["output"],
            request_micros=values["request"],
            gpu_second_micros=values["gpu_second"],
        )
        price = set_price(
            values["model"],
            tag,
            version_id=values["version_id"],
            effective_from=values["effective_from"],
            actor=self.actor,
        )
        return tagged(PriceSerializer(price).data, status=status.HTTP_201_CREATED)


class PriceView(ControlView):
    """One entry of the price book."""

    @extend_schema(responses=PriceSerializer)
    def get(self, request: Request, price_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.PRICE)
        try:
            return tagged(PriceSerializer(list_prices().get(pk=price_id)).data)
        except Price.DoesNotExist as error:
            raise NotFound from error

    @extend_schema(responses={204: None})
    def delete(self, request: Request, price_id: UUID) -> Response:
        """Withdraw a price that is not in effect yet; operators only. One that is or was is 409."""
        platform_access(request, Action.DELETE, Object.PRICE)
        try:
            withdraw_price(price_id, actor=self.actor)
        except Price.DoesNotExist as error:
            raise NotFound from error
        return Response(status=status.HTTP_204_NO_CONTENT)


class AdjustmentSerializer(serializers.ModelSerializer[Adjustment]):
    amount = MoneyField(source="amount_micros", read_only=True)

    class Meta:
        model = Adjustment
        fields = ("id", "kind", "amount", "month", "reason", "usage_record_id", "created_by", "created_at")
        read_only_fields = fields


class NewAdjustmentSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=AdjustmentKind.choices)
    amount = MoneyField(help_text="Added to the month's cost: below zero in the tenant's favour.")
    month = serializers.CharField(max_length=7, help_text="2026-11, of the tenant's calendar.")
    reason = serializers.CharField(max_length=200)
    usage_record_id = serializers.UUIDField(
        required=False, allow_null=True, default=None, help_text="The request that it is about."
    )


class AdjustmentQuery(Query):
    month = serializers.CharField(required=False, max_length=7)


class AdjustmentListView(IdempotentCreate, ControlView, ListAPIView[Adjustment]):
    """Credits and corrections of a tenant."""

    serializer_class = AdjustmentSerializer
    pagination_class = NewestFirst
    query_class = AdjustmentQuery

    def get_queryset(self) -> QuerySet[Adjustment]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Adjustment.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.ADJUSTMENT)
        return list_adjustments(tenant.pk, **self.query)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewAdjustmentSerializer, responses={201: AdjustmentSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Credit or correct a month; operators only. It stays: what is wrong is set right by another one."""
        tenant, _ = tenant_access(request, slug, Action.CREATE, Object.ADJUSTMENT)
        values = self.parsed(NewAdjustmentSerializer)
        made = adjust_bill(tenant, amount_micros=values.pop("amount"), actor=self.actor, **values)
        return Response(AdjustmentSerializer(made).data, status=status.HTTP_201_CREATED)


class LineSerializer(serializers.Serializer[Any]):
    model = serializers.CharField()
    key_id = serializers.UUIDField(allow_null=True)
    key_name = serializers.CharField()
    key_masked = serializers.CharField()
    requests = serializers.IntegerField()
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Part of the input tokens.")
    output_tokens = serializers.IntegerField()
    cost = MoneyField(source="cost_micros")


class StatedAdjustmentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    kind = serializers.CharField()
    amount = MoneyField(source="amount_micros")
    reason = serializers.CharField()
    usage_record_id = serializers.UUIDField(allow_null=True)
    created_at = serializers.DateTimeField()


class GpuLineSerializer(serializers.Serializer[Any]):
    model = serializers.CharField()
    busy_ms = serializers.IntegerField()
    idle_ms = serializers.IntegerField()
    warm_ms = serializers.IntegerField()
    cost = MoneyField(source="cost_micros")


class StatementSerializer(serializers.Serializer[Any]):
    """A month. The total is usage and adjustments; GPU time is shown and not billed."""

    tenant = serializers.SlugField(source="tenant_slug")
    month = serializers.CharField()
    time_zone = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    closed = serializers.BooleanField(help_text="The month is over; rows of its last minutes may still come.")
    currency = serializers.CharField()
    lines = LineSerializer(many=True)
    by_key = serializers.BooleanField(help_text="False: too many keys and models; a line is of a model, whatever key.")
    adjustments = StatedAdjustmentSerializer(many=True)
    gpu = GpuLineSerializer(many=True)
    requests = serializers.IntegerField()
    usage = MoneyField(source="usage_micros")
    adjusted = MoneyField(source="adjusted_micros")
    total = MoneyField(source="total_micros")
    gpu_total = MoneyField(source="gpu_micros")


class MonthsSerializer(serializers.Serializer[Any]):
    results = serializers.ListField(child=serializers.CharField())


class StatementListView(ControlView):
    """Months that a tenant has statements of."""

    @extend_schema(responses=MonthsSerializer, operation_id="tenants_statements_list")
    def get(self, request: Request, slug: str) -> Response:
        """Newest first, the running one included; two years at most."""
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.STATEMENT)
        return Response({"results": list_months(tenant, now=timezone.now())})


def _statement(request: Request, slug: str, month: str) -> Statement:
    tenant, _ = tenant_access(request, slug, Action.VIEW, Object.STATEMENT)
    try:
        return build_statement(tenant, month, now=timezone.now())
    except ValueError as error:
        raise NotFound(str(error)) from error


class StatementView(ControlView):
    """One month of a tenant."""

    @extend_schema(responses=StatementSerializer)
    def get(self, request: Request, slug: str, month: str) -> Response:
        """What it cost, by model and key; the running month as far as it goes."""
        return Response(StatementSerializer(_statement(request, slug, month)).data)


class StatementCsvView(ControlView):
    """The same as a table."""

    @extend_schema(responses={(200, MEDIA_TYPE): OpenApiTypes.STR})
    def get(self, request: Request, slug: str, month: str) -> Any:
        statement = _statement(request, slug, month)
        return csv_response(request, f"{slug}-{statement.month}.csv", COLUMNS, statement_rows(statement))


class ShareSerializer(serializers.Serializer[Any]):
    tenant_id = serializers.UUIDField(allow_null=True, help_text="Null: nobody used it, and it is nobody's own.")
    model = serializers.CharField()
    gpus = serializers.IntegerField(help_text="Of each instance; 0 on a CPU.")
    busy_ms = serializers.IntegerField(help_text="Of instances' time; GPU time is that many times `gpus`.")
    idle_ms = serializers.IntegerField()
    warm_ms = serializers.IntegerField()
    cost = MoneyField(source="cost_micros")


class SharesSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    currency = serializers.CharField()
    results = ShareSerializer(many=True)


class ShareQuery(Query):
    since = serializers.DateTimeField(required=False, help_text="Hours from then on; this month's when it is not said.")
    until = serializers.DateTimeField(required=False)


class ShareListView(ControlView):
    """Who the pool's time was spent for."""

    query_class = ShareQuery

    @extend_schema(responses=SharesSerializer, parameters=[ShareQuery])
    def get(self, request: Request) -> Response:
        """By tenant and model, dearest first, a thousand at most; for platform roles."""
        platform_access(request, Action.VIEW, Object.STATEMENT)
        now = timezone.now()
        until = self.query.get("until", now)
        since = self.query.get("since", now.replace(day=1, hour=0, minute=0, second=0, microsecond=0))
        results = gpu_shares(since=since, until=until, most=MOST_SHARES)
        body = {"since": since, "until": until, "currency": get_currency(), "results": results}
        return Response(SharesSerializer(body).data)

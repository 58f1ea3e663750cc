"""Shapes of the control API of tenants: what it takes and what it tells."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from core.api.filters import Query
from tenants.models import SlaTier, Tenant, TenantState
from tenants.policies.tiers import TrafficClass, objectives_of


class ObjectivesSerializer(serializers.Serializer[Any]):
    """What is aimed at for requests of a tier; see tenants.policies.tiers."""

    traffic_class = serializers.ChoiceField(
        choices=[one.value for one in TrafficClass],
        help_text="How urgent its requests are where their route says nothing else; p0 goes first.",
    )
    ttft_p99_seconds = serializers.FloatField(help_text="99 of 100 streams have their first token within.")
    latency_p99_seconds = serializers.FloatField(help_text="99 of 100 answers have ended within.")
    availability = serializers.FloatField(help_text="The share of requests that do not fail for our reasons.")


class TenantSerializer(serializers.ModelSerializer[Tenant]):
    parent = serializers.SlugField(  # type: ignore[assignment]  # DRF takes fields out of the class
        source="parent.slug", read_only=True, allow_null=True, default=None, help_text="Whose department it is."
    )

    objectives = serializers.SerializerMethodField(help_text="What its tier means.")

    class Meta:
        model = Tenant
        fields = (
            "id", "slug", "name", "parent", "sla_tier", "objectives", "time_zone", "state", "response_retention_days",
            "conversation_retention_days", "created_at",
        )  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(ObjectivesSerializer)
    def get_objectives(self, tenant: Tenant) -> dict[str, Any]:
        return dict(ObjectivesSerializer(objectives_of(tenant.sla_tier)).data)


class TenantQuery(Query):
    parent = serializers.SlugField(  # type: ignore[assignment]  # as above
        required=False, max_length=63
    )
    state = serializers.ChoiceField(choices=TenantState.choices, required=False)
    sla_tier = serializers.ChoiceField(choices=SlaTier.choices, required=False)


class NewTenantSerializer(serializers.Serializer[Any]):
    slug = serializers.SlugField(max_length=63)
    name = serializers.CharField(max_length=120)
    parent = serializers.SlugField(  # type: ignore[assignment]  # as above
        required=False, allow_null=True, default=None, max_length=63
    )
    sla_tier = serializers.ChoiceField(choices=SlaTier.choices, required=False, default=SlaTier.BRONZE.value)
    time_zone = serializers.CharField(max_length=64, required=False, default="UTC", help_text="An IANA zone.")


class TenantChangeSerializer(serializers.Serializer[Any]):
    """What is left out stays as it is."""

    name = serializers.CharField(required=False, max_length=120)
    parent = serializers.SlugField(  # type: ignore[assignment]  # as above
        required=False, allow_null=True, max_length=63, help_text="Null: nobody's."
    )
    sla_tier = serializers.ChoiceField(choices=SlaTier.choices, required=False)
    time_zone = serializers.CharField(required=False, max_length=64, help_text="An IANA zone.")
    response_retention_days = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=3650,
        help_text="How many days answers of the Responses API are kept; 0 for not at all.",
    )
    conversation_retention_days = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=3650,
        help_text="How many days conversations are kept, of keys that ask for it; 0 for not at all.",
    )

"""Shapes of the control API: what it takes and what it tells."""

from typing import Any

from rest_framework import serializers

from tenants.models import SlaTier, Tenant


class TenantSerializer(serializers.ModelSerializer[Tenant]):
    class Meta:
        model = Tenant
        fields = ("id", "slug", "name", "sla_tier", "time_zone", "state", "response_retention_days", "created_at")


class NewTenantSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=120)
    sla_tier = serializers.CharField(max_length=8, required=False, default=SlaTier.BRONZE.value)
    time_zone = serializers.CharField(max_length=64, required=False, default="UTC")


class TenantChangeSerializer(serializers.Serializer[Any]):
    response_retention_days = serializers.IntegerField(
        help_text="How many days answers of the Responses API are kept; 0 for not at all."
    )

"""Shapes of the control API: what it takes and what it tells."""

from typing import Any

from rest_framework import serializers

from tenants.models import ApiKey, SlaTier, Tenant


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


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    """A key without its secret, which nobody can see again."""

    masked = serializers.CharField(read_only=True)
    scopes = serializers.ListField(child=serializers.CharField(), read_only=True)
    allowed_models = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Names or patterns; empty: whatever is granted."
    )

    class Meta:
        model = ApiKey
        fields = (
            "id", "name", "masked", "scopes", "allowed_models", "rpm_limit", "keep_alive", "expires_at",
            "revoked_at", "last_used_at", "created_at",
        )  # fmt: skip


class NewKeySerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(
        child=serializers.CharField(max_length=16), required=False, default=["infer", "embed"]
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        default=list,
        help_text="Names or patterns; empty: whatever the tenant is granted.",
    )
    rpm_limit = serializers.IntegerField(required=False, allow_null=True, default=None, help_text="Requests a minute.")
    keep_alive = serializers.BooleanField(
        required=False,
        default=True,
        help_text="Comments are sent in a stream that has nothing to say; false for clients that cannot read them.",
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class KeyWithSecretSerializer(KeySerializer):
    """The answer to a key's creation: the only place where its secret is."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = (*KeySerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's

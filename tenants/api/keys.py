"""The control API of API keys. A secret is in the answer to its creation and nowhere after."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import services
from tenants.api.access import TenantAccess, find_tenant, person_of, platform_access, require, tenant_access
from tenants.api.base import ControlView
from tenants.models import ApiKey
from tenants.policies.roles import Action, Object
from tenants.reads import keys as reads
from tenants.services.key_rotation import MOST_OVERLAP

_MOVING: Final = frozenset({"last_used_at"})  # changes on its own, and is nobody's edit
_ACTIONS: Final = "infer, embed, train, deploy, manage"


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    """A key without its secret, which nobody can see again."""

    masked = serializers.CharField(read_only=True)
    scopes = serializers.ListField(child=serializers.CharField(), read_only=True)
    allowed_models = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Names or patterns; empty: whatever is granted."
    )
    replaced_by = serializers.UUIDField(
        source="replaced_by_id", read_only=True, allow_null=True, help_text="The key it was rotated into."
    )

    class Meta:
        model = ApiKey
        fields = (
            "id", "name", "masked", "scopes", "allowed_models", "rpm_limit", "keep_alive", "store_conversations",
            "expires_at", "revoked_at", "compromised_at", "known_good_at", "replaced_by", "last_used_at", "created_at",
        )  # fmt: skip


class KeyChangeSerializer(serializers.Serializer[Any]):
    """What is left out stays as it is."""

    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(child=serializers.CharField(max_length=16), help_text=f"Some of {_ACTIONS}.")
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200),
        help_text="Names or patterns; empty: whatever the tenant is granted.",
    )
    rpm_limit = serializers.IntegerField(allow_null=True, help_text="Requests a minute; null: no limit of its own.")
    keep_alive = serializers.BooleanField(
        help_text="Comments are sent in a stream that has nothing to say; false for clients that cannot read them."
    )
    store_conversations = serializers.BooleanField(help_text="Whether its conversations are kept.")
    expires_at = serializers.DateTimeField(allow_null=True)


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
    store_conversations = serializers.BooleanField(
        required=False, default=False, help_text="Whether its conversations are kept."
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class KeyWithSecretSerializer(KeySerializer):
    """The answer to a key's creation: the only place where its secret is."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = (*KeySerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's


class RotationSerializer(serializers.Serializer[Any]):
    overlap_seconds = serializers.IntegerField(
        min_value=0,
        max_value=int(MOST_OVERLAP.total_seconds()),
        help_text="How long the old key works beside the new one; 0: it is revoked at once.",
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="Of the new key; else it lives as long as the old one."
    )


class CompromiseSerializer(serializers.Serializer[Any]):
    known_good_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="Until when its use was surely its owner's."
    )


class ExposureSerializer(serializers.Serializer[Any]):
    """What a key was used for since it was last known to be its owner's alone, in whole minutes."""

    since = serializers.DateTimeField(read_only=True)
    until = serializers.DateTimeField(read_only=True, allow_null=True, help_text="When it was revoked.")
    requests = serializers.IntegerField(read_only=True)
    input_tokens = serializers.IntegerField(read_only=True)
    output_tokens = serializers.IntegerField(read_only=True)
    cost_micros = serializers.IntegerField(read_only=True)
    models = serializers.ListField(child=serializers.CharField(), read_only=True)
    last_used_at = serializers.DateTimeField(read_only=True, allow_null=True)


class CompromisedKeySerializer(KeySerializer):
    """A compromised key, whose it is, and what it may have been used for by others."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    exposure = serializers.SerializerMethodField()

    class Meta(KeySerializer.Meta):
        fields = (*KeySerializer.Meta.fields, "tenant", "exposure")  # type: ignore[assignment]  # more than the base's

    @extend_schema_field(ExposureSerializer)
    def get_exposure(self, key: ApiKey) -> dict[str, Any]:
        return dict(ExposureSerializer(reads.exposure_of(key, timezone.now())).data)


class KeyQuery(Query):
    revoked = serializers.BooleanField(required=False, help_text="Whether revoked keys are listed too.")
    compromised = serializers.BooleanField(required=False, help_text="Only compromised keys, or only the others.")
    name = serializers.CharField(required=False, max_length=80, help_text="Part of the name.")


def _key(access: TenantAccess, key_id: UUID, *, lock: bool = False) -> ApiKey:
    """Raises NotFound, also for another tenant's key."""
    keys = ApiKey.objects.select_for_update() if lock else ApiKey.objects
    try:
        return keys.get(tenant=access.tenant, pk=key_id)
    except ApiKey.DoesNotExist as error:
        raise NotFound from error


def _changeable(request: Request, slug: str, key_id: UUID, action: Action, *, lock: bool = False) -> ApiKey:
    """The key, if the person may do `action` to it: with their own keys people may more."""
    access = find_tenant(request, slug)
    key = _key(access, key_id, lock=lock)
    own = key.created_by_id == person_of(request).pk
    require(request, access, action, Object.OWN_KEY if own else Object.KEY)
    return key


def _told(key: ApiKey) -> dict[str, Any]:
    return dict(KeySerializer(key).data)


class KeyListView(IdempotentCreate, ControlView, ListAPIView[ApiKey]):
    """A tenant's keys."""

    serializer_class = KeySerializer
    pagination_class = NewestFirst
    query_class = KeyQuery

    def get_queryset(self) -> QuerySet[ApiKey]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return ApiKey.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.KEY)
        return reads.list_keys(
            tenant,
            include_revoked=self.query.get("revoked", False),
            compromised=self.query.get("compromised"),
            name=self.query.get("name", ""),
        )

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first, without their secrets."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewKeySerializer, responses={201: KeyWithSecretSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Create a key; the answer is the only place where its secret is."""
        tenant, _ = tenant_access(request, slug, Action.CREATE, Object.KEY)
        values = self.parsed(NewKeySerializer)
        new = services.create_api_key(tenant, actor=self.actor, created_by=self.person.pk, **values)
        return _with_secret(new)


class KeyView(ControlView):
    """One key."""

    conditional = ("PATCH",)

    @extend_schema(responses=KeySerializer)
    def get(self, request: Request, slug: str, key_id: UUID) -> Response:
        """The key without its secret."""
        access = tenant_access(request, slug, Action.VIEW, Object.KEY)
        return tagged(_told(_key(access, key_id)), without=_MOVING)

    @extend_schema(request=KeyChangeSerializer, responses=KeySerializer)
    def patch(self, request: Request, slug: str, key_id: UUID) -> Response:
        """Change it, within a second everywhere."""
        with transaction.atomic():
            key = _changeable(request, slug, key_id, Action.CHANGE, lock=True)
            values = self.parsed(KeyChangeSerializer, partial=True)
            check_match(request, _told(key), without=_MOVING)
            key = services.change_api_key(key.pk, actor=self.actor, **values)
        return tagged(_told(key), without=_MOVING)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, key_id: UUID) -> Response:
        """Revoke it, within a second everywhere; it stays listed. Revoking twice changes nothing."""
        key = _changeable(request, slug, key_id, Action.DELETE)
        services.revoke_api_key(key.pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class KeyRotateView(IdempotentCreate, ControlView):
    """Another key in a key's place."""

    @extend_schema(request=RotationSerializer, responses={201: KeyWithSecretSerializer})
    def post(self, request: Request, slug: str, key_id: UUID) -> Response:
        """A new key with the same rights, habits, grants and budget; the old one works for the overlap longer."""
        key = _changeable(request, slug, key_id, Action.CHANGE)
        require(request, find_tenant(request, slug), Action.CREATE, Object.KEY)  # in a suspended tenant nobody may
        values = self.parsed(RotationSerializer)
        new = services.rotate_api_key(
            key.pk,
            overlap=timedelta(seconds=values["overlap_seconds"]),
            expires_at=values["expires_at"],
            actor=self.actor,
        )
        return _with_secret(new)


class KeyCompromiseView(ControlView):
    """A key whose secret others know, or may."""

    @extend_schema(request=CompromiseSerializer, responses=KeySerializer)
    def post(self, request: Request, slug: str, key_id: UUID) -> Response:
        """Revoke it at once and list it as compromised, also when it was revoked before."""
        key = _changeable(request, slug, key_id, Action.DELETE)
        values = self.parsed(CompromiseSerializer)
        key = services.revoke_api_key(key.pk, actor=self.actor, compromised=True, known_good_at=values["known_good_at"])
        return tagged(_told(key), without=_MOVING)


class KeyExposureView(ControlView):
    """What a key was used for since it was last known to be its owner's alone."""

    @extend_schema(responses=ExposureSerializer)
    def get(self, request: Request, slug: str, key_id: UUID) -> Response:
        """Of a key that nobody said a time of: of all its life."""
        access = tenant_access(request, slug, Action.VIEW, Object.KEY)
        return Response(ExposureSerializer(reads.exposure_of(_key(access, key_id), timezone.now())).data)


class CompromisedKeyListView(ControlView, ListAPIView[ApiKey]):
    """Compromised keys of all tenants."""

    serializer_class = CompromisedKeySerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[ApiKey]:
        if getattr(self, "swagger_fake_view", False):
            return ApiKey.objects.none()
        platform_access(self.request, Action.VIEW, Object.KEY)
        return reads.list_compromised_keys()

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest key first; for platform roles."""
        return super().get(request, *args, **kwargs)


def _with_secret(new: services.NewKey) -> Response:
    body = {**_told(new.key), "secret": new.secret}
    return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

"""The control API of people's own access tokens, with which scripts use it."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import tagged
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import services
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.models import AccessToken, User
from tenants.policies.roles import Action, Object
from tenants.reads.access_tokens import get_access_token_for, list_access_tokens


class AccessTokenSerializer(serializers.ModelSerializer[AccessToken]):
    """An access token without its secret. It has its person's rights, for as long as they have them."""

    user_id = serializers.UUIDField(read_only=True)
    expired = serializers.SerializerMethodField()

    class Meta:
        model = AccessToken
        fields = ("id", "user_id", "name", "last_four", "created_at", "expires_at", "expired")
        read_only_fields = fields

    def get_expired(self, token: AccessToken) -> bool:
        return token.expires_at is not None and token.expires_at <= timezone.now()


class NewAccessTokenSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=80, help_text="What it is for.")
    expires_at = serializers.DateTimeField(
        required=False, default=None, allow_null=True, help_text="None: it works until it is revoked."
    )


class AccessTokenWithSecretSerializer(AccessTokenSerializer):
    """The answer to a token's creation: the only place where its secret is."""

    secret = serializers.CharField(read_only=True, help_text="For `Authorization: Token SECRET`. It is told once.")

    class Meta(AccessTokenSerializer.Meta):
        fields = (*AccessTokenSerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's


class AccessTokenListView(IdempotentCreate, ControlView, ListAPIView[AccessToken]):
    """One's own access tokens."""

    serializer_class = AccessTokenSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[AccessToken]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator is nobody
            return AccessToken.objects.none()
        return list_access_tokens(self.person)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first, without their secrets; expired ones too."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewAccessTokenSerializer, responses={201: AccessTokenWithSecretSerializer})
    def post(self, request: Request) -> Response:
        """Make one for oneself; the answer is the only place where its secret is.

        What asks with a token that ends is given one that ends no later.
        """
        values = self.parsed(NewAccessTokenSerializer)
        made_with = request.auth if isinstance(request.auth, AccessToken) else None
        new = services.create_access_token(self.person, actor=self.actor, made_with=made_with, **values)
        body = {**AccessTokenSerializer(new.token).data, "secret": new.secret}
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class AccessTokenView(ControlView):
    """One access token."""

    @extend_schema(responses=AccessTokenSerializer)
    def get(self, request: Request, token_id: UUID) -> Response:
        """One's own; anybody's for superusers."""
        return tagged(AccessTokenSerializer(self._token(token_id, Action.VIEW)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, token_id: UUID) -> Response:
        """Revoke it: it is refused from the next call on. One's own; anybody's for superusers."""
        self._token(token_id, Action.DELETE)
        try:
            services.delete_access_token(token_id, actor=self.actor)
        except AccessToken.DoesNotExist as error:  # somebody else was faster
            raise NotFound from error
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _token(self, token_id: UUID, action: Action) -> AccessToken:
        try:
            return get_access_token_for(self.person, token_id, action)
        except AccessToken.DoesNotExist as error:
            raise NotFound from error


class PersonAccessTokenListView(ControlView, ListAPIView[AccessToken]):
    """Access tokens of a person."""

    serializer_class = AccessTokenSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[AccessToken]:
        if getattr(self, "swagger_fake_view", False):
            return AccessToken.objects.none()
        user_id = self.kwargs["user_id"]
        if self.person.pk != user_id:
            platform_access(self.request, Action.VIEW, Object.ACCESS_TOKEN)
        person = User.objects.filter(pk=user_id).first()
        if person is None:
            raise NotFound
        return list_access_tokens(person)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first; for themselves and superusers."""
        return super().get(request, *args, **kwargs)

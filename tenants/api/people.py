"""The control API of people and of the roles that an identity provider's claims stand for."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
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
from core.refusals import InvalidInput
from tenants import services
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.models import PlatformRole, RoleMapping, Tenant, TenantRole, User
from tenants.policies.roles import Action, Object
from tenants.reads import people
from tenants.services.erasure import erase_person
from tenants.services.people import lock_person, login_link


class PersonSerializer(serializers.ModelSerializer[User]):
    """A person; `second_factor` says whether an authenticator app or a passkey is set up."""

    second_factor = serializers.BooleanField(read_only=True)

    class Meta:
        model = User
        fields = (
            "id", "email", "display_name", "platform_role", "platform_role_source", "is_active", "second_factor",
            "last_login", "date_joined",
        )  # fmt: skip
        read_only_fields = fields


class PersonChangeSerializer(serializers.Serializer[Any]):
    platform_role = serializers.ChoiceField(choices=PlatformRole.choices, required=False, allow_blank=True)
    is_active = serializers.BooleanField(required=False)
    display_name = serializers.CharField(required=False, allow_blank=True, max_length=120)


class NewPersonSerializer(serializers.Serializer[Any]):
    email = serializers.CharField(max_length=254)
    display_name = serializers.CharField(required=False, default="", allow_blank=True, max_length=120)
    platform_role = serializers.ChoiceField(choices=PlatformRole.choices, required=False, default="", allow_blank=True)


class PersonWithSecretSerializer(PersonSerializer):
    """The answer to a person's creation: the only place where their link is."""

    secret = serializers.URLField(read_only=True, help_text="The link that logs them in, once, for a day.")

    class Meta(PersonSerializer.Meta):
        fields = (*PersonSerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's


class PeopleQuery(Query):
    q = serializers.CharField(required=False, max_length=200, help_text="Part of an address.")


class RoleMappingSerializer(serializers.ModelSerializer[RoleMapping]):
    tenant = serializers.SlugRelatedField[Tenant](slug_field="slug", read_only=True, allow_null=True)
    tenant_role = serializers.CharField(read_only=True, help_text="Empty where it gives a platform role.")

    class Meta:
        model = RoleMapping
        fields = ("id", "claim", "value", "platform_role", "tenant", "tenant_role", "created_at")
        read_only_fields = fields


class NewRoleMappingSerializer(serializers.Serializer[Any]):
    claim = serializers.CharField(
        max_length=200, help_text="A claim's name, or a path of names: `groups`, `realm_access.roles`."
    )
    value = serializers.CharField(max_length=200, help_text="Compared exactly; of a list any one.")
    platform_role = serializers.CharField(required=False, default="", allow_blank=True, max_length=16)
    tenant = serializers.CharField(required=False, default=None, allow_null=True, max_length=63, help_text="Its slug.")
    tenant_role = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=12,
        help_text=f"One of {', '.join(TenantRole.values)}.",
    )


class PersonListView(IdempotentCreate, ControlView, ListAPIView[User]):
    """Everyone who can log in; for platform roles."""

    serializer_class = PersonSerializer
    pagination_class = NewestFirst
    query_class = PeopleQuery

    def get_queryset(self) -> QuerySet[User]:
        if getattr(self, "swagger_fake_view", False):
            return User.objects.none()
        platform_access(self.request, Action.VIEW, Object.PERSON)
        return people.list_people(search=self.query.get("q", ""))

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewPersonSerializer, responses={201: PersonWithSecretSerializer})
    def post(self, request: Request) -> Response:
        """Make someone who works for the platform; superusers only. Members of tenants are invited instead.

        The answer is the only place where the link is with which they come in and set a password.
        """
        platform_access(request, Action.CREATE, Object.PERSON)
        new = services.create_person(actor=self.actor, **self.parsed(NewPersonSerializer))
        body = {**PersonSerializer(_person(new.link.user_id)).data, "secret": login_link(new.secret)}
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class PersonView(ControlView):
    """One person."""

    conditional = ("PATCH",)

    @extend_schema(responses=PersonSerializer)
    def get(self, request: Request, user_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.PERSON)
        return tagged(PersonSerializer(_person(user_id)).data, without=("last_login",))

    @extend_schema(request=PersonChangeSerializer, responses=PersonSerializer)
    def patch(self, request: Request, user_id: UUID) -> Response:
        """Change role, name, or whether they may log in; superusers only. A change of rights ends their sessions."""
        platform_access(request, Action.CHANGE, Object.PERSON)
        values = self.parsed(PersonChangeSerializer)
        with transaction.atomic():
            try:
                lock_person(user_id)
            except User.DoesNotExist as error:
                raise NotFound from error
            check_match(request, PersonSerializer(_person(user_id)).data, without=("last_login",))
            services.change_person(user_id, actor=self.actor, **values)
        return tagged(PersonSerializer(_person(user_id)).data, without=("last_login",))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, user_id: UUID) -> Response:
        """Erase them, in every tenant; superusers only. It cannot be undone. 409 for a tenant's last owner."""
        platform_access(request, Action.DELETE, Object.PERSON)
        _person(user_id)
        erase_person(user_id, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class SecondFactorResetView(ControlView):
    """For whoever lost phone and passkeys."""

    @extend_schema(request=None, responses=PersonSerializer)
    def post(self, request: Request, user_id: UUID) -> Response:
        """Forget a person's second factor, end their sessions and revoke their access tokens; superusers only."""
        platform_access(request, Action.CHANGE, Object.PERSON)
        _person(user_id)
        services.reset_second_factor(user_id, actor=self.actor)
        return Response(PersonSerializer(_person(user_id)).data)


class RoleMappingListView(IdempotentCreate, ControlView, ListAPIView[RoleMapping]):
    """Roles that an identity provider's claims stand for."""

    serializer_class = RoleMappingSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[RoleMapping]:
        if getattr(self, "swagger_fake_view", False):
            return RoleMapping.objects.none()
        platform_access(self.request, Action.VIEW, Object.PERSON)
        return people.list_role_mappings()

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewRoleMappingSerializer, responses={201: RoleMappingSerializer})
    def post(self, request: Request) -> Response:
        """Add one; superusers only. It counts from each person's next log-in on."""
        platform_access(request, Action.CREATE, Object.PERSON)
        values = self.parsed(NewRoleMappingSerializer)
        slug = values.pop("tenant")
        tenant = Tenant.objects.filter(slug=slug).first() if slug else None
        if slug and tenant is None:
            raise InvalidInput("tenant", "There is no such tenant.")
        mapping = services.create_role_mapping(tenant=tenant, actor=self.actor, **values)
        return tagged(RoleMappingSerializer(mapping).data, status=status.HTTP_201_CREATED)


class RoleMappingView(ControlView):
    """One mapping."""

    @extend_schema(responses=RoleMappingSerializer)
    def get(self, request: Request, mapping_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.PERSON)
        mapping = people.list_role_mappings().filter(pk=mapping_id).first()
        if mapping is None:
            raise NotFound
        return tagged(RoleMappingSerializer(mapping).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, mapping_id: UUID) -> Response:
        """What it gave is taken at each person's next log-in; superusers only."""
        platform_access(request, Action.DELETE, Object.PERSON)
        try:
            services.delete_role_mapping(mapping_id, actor=self.actor)
        except RoleMapping.DoesNotExist as error:
            raise NotFound from error
        return Response(status=status.HTTP_204_NO_CONTENT)


def _person(user_id: UUID) -> User:
    person = people.list_people().filter(pk=user_id).first()
    if person is None:
        raise NotFound
    return person

"""The control API of a tenant's members and invitations."""

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
from tenants import services
from tenants.api.access import TenantAccess, person_of, tenant_access
from tenants.api.base import ControlView
from tenants.models import Invitation, Membership, TenantRole
from tenants.policies.roles import Action, Object, Standing
from tenants.reads import people
from tenants.services.invitations import DEFAULT_DAYS, MOST_DAYS, invitation_link
from tenants.services.members import lock_member


class MemberSerializer(serializers.ModelSerializer[Membership]):
    """A member; `source` says who gave the role: `claims` are an identity provider's, and change with them."""

    user_id = serializers.UUIDField(read_only=True)
    email = serializers.CharField(source="user.email", read_only=True)
    display_name = serializers.CharField(source="user.display_name", read_only=True)
    is_active = serializers.BooleanField(source="user.is_active", read_only=True)

    class Meta:
        model = Membership
        fields = ("user_id", "email", "display_name", "is_active", "role", "source", "created_at")


class MemberChangeSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=TenantRole.choices)


class InvitationSerializer(serializers.ModelSerializer[Invitation]):
    """An invitation without its link, which nobody can see again."""

    state = serializers.SerializerMethodField()

    class Meta:
        model = Invitation
        fields = ("id", "email", "role", "state", "invited_by", "created_at", "expires_at", "accepted_at")
        read_only_fields = fields

    def get_state(self, invitation: Invitation) -> str:
        return invitation.state(timezone.now())


class NewInvitationSerializer(serializers.Serializer[Any]):
    email = serializers.CharField(max_length=254)
    role = serializers.ChoiceField(choices=TenantRole.choices)
    days = serializers.IntegerField(required=False, default=DEFAULT_DAYS, min_value=1, max_value=MOST_DAYS)


class InvitationWithSecretSerializer(InvitationSerializer):
    """The answer to an invitation's creation: the only place where its link is."""

    secret = serializers.URLField(read_only=True, help_text="The link to send. It is told once.")

    class Meta(InvitationSerializer.Meta):
        fields = (*InvitationSerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more than the base's


class InvitationQuery(Query):
    open = serializers.BooleanField(required=False, help_text="Only those that can still be accepted.")


def standing_of(request: Request, access: TenantAccess) -> Standing:
    return Standing(person_of(request).active_platform_role, access.role)


class MemberListView(ControlView, ListAPIView[Membership]):
    """A tenant's members."""

    serializer_class = MemberSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Membership]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no tenant
            return Membership.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.MEMBER)
        return people.list_members(tenant)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first."""
        return super().get(request, *args, **kwargs)


class MemberView(ControlView):
    """One member."""

    conditional = ("PATCH",)

    @extend_schema(responses=MemberSerializer)
    def get(self, request: Request, slug: str, user_id: UUID) -> Response:
        access = tenant_access(request, slug, Action.VIEW, Object.MEMBER)
        return tagged(MemberSerializer(self._member(access, user_id)).data)

    @extend_schema(request=MemberChangeSerializer, responses=MemberSerializer)
    def patch(self, request: Request, slug: str, user_id: UUID) -> Response:
        """Give another role: none above one's own, and the last owner stays one."""
        access = tenant_access(request, slug, Action.CHANGE, Object.MEMBER)
        values = self.parsed(MemberChangeSerializer)
        with transaction.atomic():
            try:
                found = lock_member(access.tenant, user_id)
            except Membership.DoesNotExist as error:
                raise NotFound from error
            check_match(request, MemberSerializer(found).data)
            member = services.change_member_role(
                access.tenant, user_id, values["role"], standing=standing_of(request, access), actor=self.actor
            )
        return tagged(MemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, user_id: UUID) -> Response:
        """Remove the member; from the next call on they are an outsider."""
        access = tenant_access(request, slug, Action.DELETE, Object.MEMBER)
        self._member(access, user_id)
        services.remove_member(access.tenant, user_id, standing=standing_of(request, access), actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _member(self, access: TenantAccess, user_id: UUID) -> Membership:
        try:
            return people.get_member(access.tenant, user_id)
        except Membership.DoesNotExist as error:
            raise NotFound from error


class InvitationListView(IdempotentCreate, ControlView, ListAPIView[Invitation]):
    """A tenant's invitations."""

    serializer_class = InvitationSerializer
    pagination_class = NewestFirst
    query_class = InvitationQuery

    def get_queryset(self) -> QuerySet[Invitation]:
        if getattr(self, "swagger_fake_view", False):
            return Invitation.objects.none()
        tenant, _ = tenant_access(self.request, self.kwargs["slug"], Action.VIEW, Object.INVITATION)
        return people.list_invitations(tenant, open_only=self.query.get("open", False))

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first, without their links."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=NewInvitationSerializer, responses={201: InvitationWithSecretSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Invite someone; the answer is the only place where the link is. An open one to the address is replaced."""
        access = tenant_access(request, slug, Action.CREATE, Object.INVITATION)
        values = self.parsed(NewInvitationSerializer)
        new = services.create_invitation(
            access.tenant, standing=standing_of(request, access), actor=self.actor, **values
        )
        body = {**InvitationSerializer(new.invitation).data, "secret": invitation_link(new.secret)}
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class InvitationView(ControlView):
    """One invitation."""

    @extend_schema(responses=InvitationSerializer)
    def get(self, request: Request, slug: str, invitation_id: UUID) -> Response:
        """The invitation without its link."""
        access = tenant_access(request, slug, Action.VIEW, Object.INVITATION)
        return tagged(InvitationSerializer(self._invitation(access, invitation_id)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, invitation_id: UUID) -> Response:
        """Withdraw it: its link stops working. Withdrawing twice changes nothing."""
        access = tenant_access(request, slug, Action.DELETE, Object.INVITATION)
        self._invitation(access, invitation_id)
        services.withdraw_invitation(
            access.tenant, invitation_id, standing=standing_of(request, access), actor=self.actor
        )
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _invitation(self, access: TenantAccess, invitation_id: UUID) -> Invitation:
        try:
            return people.get_invitation(access.tenant, invitation_id)
        except Invitation.DoesNotExist as error:
            raise NotFound from error

"""The control API of token issuers: whose signatures the doors believe."""

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
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from tenants import services
from tenants.api.access import platform_access
from tenants.api.base import ControlView
from tenants.models import Tenant, TokenIssuer
from tenants.policies.rbac import ACTIONS
from tenants.policies.roles import Action, Object
from tenants.policies.token_keys import ALGORITHMS
from tenants.services import InvalidInput
from tenants.services.issuers import MOST_LEEWAY_SECONDS


def _texts(**options: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.CharField(max_length=500), max_length=100, **options)


def _actions(**options: Any) -> serializers.ListField:
    return serializers.ListField(child=serializers.ChoiceField(choices=sorted(ACTIONS)), **options)


class IssuerSerializer(serializers.ModelSerializer[TokenIssuer]):
    """An issuer of tokens. Its keys are public."""

    audiences = _texts(read_only=True)
    algorithms = _texts(read_only=True)
    tenant = serializers.SlugRelatedField(slug_field="slug", read_only=True, allow_null=True)  # type: ignore[var-annotated]
    role_scopes = serializers.DictField(child=_actions(), read_only=True)
    default_scopes = _actions(read_only=True)

    class Meta:
        model = TokenIssuer
        fields = (
            "id", "name", "issuer", "audiences", "algorithms", "jwks_url", "pinned_jwks", "allow_private",
            "leeway_seconds", "tenant", "tenant_claim", "scope_claim", "role_claim", "role_scopes", "default_scopes",
            "created_at",
        )  # fmt: skip
        read_only_fields = fields


class IssuerChangeSerializer(serializers.Serializer[Any]):
    """What is left out stays as it is, or has its default."""

    name = serializers.CharField(max_length=80)
    issuer = serializers.CharField(max_length=500, help_text="The claim iss, compared as text.")
    audiences = _texts(help_text="A token names one of them in aud.")
    algorithms = serializers.ListField(
        child=serializers.ChoiceField(choices=sorted(ALGORITHMS)), required=False, help_text="RS256 when left out."
    )
    jwks_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, help_text="Where its keys are: an https address."
    )
    pinned_jwks = serializers.CharField(
        max_length=65536, required=False, allow_blank=True, help_text="A JSON key set, believed besides the address's."
    )
    allow_private = serializers.BooleanField(required=False, help_text="The address may be inside this network.")
    leeway_seconds = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=MOST_LEEWAY_SECONDS,
        help_text="For clocks that differ: of exp, nbf and iat.",
    )
    tenant = serializers.SlugField(
        required=False, allow_null=True, help_text="Whose all its tokens are; null: the tenant claim says it."
    )
    tenant_claim = serializers.CharField(max_length=200, required=False, help_text="Holds a tenant's slug or id.")
    scope_claim = serializers.CharField(max_length=200, required=False)
    role_claim = serializers.CharField(max_length=200, required=False, help_text="A name, or a way: a.b.")
    role_scopes = serializers.DictField(child=_actions(), required=False, help_text="Role -> actions.")
    default_scopes = _actions(required=False, help_text="Of tokens whose claims give none.")


class IssuerListView(IdempotentCreate, ControlView, ListAPIView[TokenIssuer]):
    """Issuers of tokens."""

    serializer_class = IssuerSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[TokenIssuer]:
        if getattr(self, "swagger_fake_view", False):
            return TokenIssuer.objects.none()
        platform_access(self.request, Action.VIEW, Object.ISSUER)
        return TokenIssuer.objects.select_related("tenant")

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Newest first; for platform roles."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=IssuerChangeSerializer, responses={201: IssuerSerializer})
    def post(self, request: Request) -> Response:
        """Believe its tokens, within a second everywhere; operators only."""
        platform_access(request, Action.CREATE, Object.ISSUER)
        issuer = services.create_token_issuer(actor=self.actor, **_with_tenant(self.parsed(IssuerChangeSerializer)))
        return tagged(IssuerSerializer(issuer).data, status=status.HTTP_201_CREATED)


class IssuerView(ControlView):
    """One issuer."""

    conditional = ("PATCH",)

    @extend_schema(responses=IssuerSerializer)
    def get(self, request: Request, issuer_id: UUID) -> Response:
        platform_access(request, Action.VIEW, Object.ISSUER)
        return tagged(IssuerSerializer(_issuer(issuer_id)).data)

    @extend_schema(request=IssuerChangeSerializer, responses=IssuerSerializer)
    def patch(self, request: Request, issuer_id: UUID) -> Response:
        """Change it, within a second everywhere, for tokens that were seen before, too."""
        platform_access(request, Action.CHANGE, Object.ISSUER)
        values = _with_tenant(self.parsed(IssuerChangeSerializer, partial=True))
        with transaction.atomic():
            check_match(request, IssuerSerializer(_issuer(issuer_id, lock=True)).data)
            issuer = services.change_token_issuer(issuer_id, actor=self.actor, **values)
        return tagged(IssuerSerializer(issuer).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, issuer_id: UUID) -> Response:
        """Believe its tokens no longer, within a second everywhere."""
        platform_access(request, Action.DELETE, Object.ISSUER)
        services.delete_token_issuer(_issuer(issuer_id).pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _issuer(issuer_id: UUID, *, lock: bool = False) -> TokenIssuer:
    issuers = TokenIssuer.objects.select_for_update() if lock else TokenIssuer.objects
    try:
        return issuers.get(pk=issuer_id)
    except TokenIssuer.DoesNotExist as error:
        raise NotFound from error


def _with_tenant(values: dict[str, Any]) -> dict[str, Any]:
    """The tenant instead of its slug. Raises InvalidInput."""
    if values.get("tenant"):
        try:
            values["tenant"] = Tenant.objects.get(slug=values["tenant"])
        except Tenant.DoesNotExist as error:
            raise InvalidInput("tenant", "There is no such tenant.") from error
    return values

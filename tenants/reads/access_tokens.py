"""Access tokens of people, without their secrets, which nobody can see again."""

from uuid import UUID

from django.db.models import QuerySet

from tenants.models import AccessToken, User
from tenants.policies.roles import Action, Object, may


def list_access_tokens(person: User) -> QuerySet[AccessToken]:
    """The person's, expired ones too, newest first."""
    return AccessToken.objects.filter(user=person).order_by("-id")


def get_access_token_for(asker: User, token_id: UUID, action: Action) -> AccessToken:
    """One's own, or anybody's for whose platform role may do `action`. Raises AccessToken.DoesNotExist."""
    anybodys = may(action, Object.ACCESS_TOKEN, platform_role=asker.active_platform_role, tenant_role=None)
    return (AccessToken.objects.all() if anybodys else list_access_tokens(asker)).get(pk=token_id)

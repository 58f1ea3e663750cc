"""Who uses the control API without a session."""

from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from tenants import selectors
from tenants.models import AccessToken, User
from tenants.second_factor import lacks_second_factor
from tenants.services import digest_secret


class AccessTokenAuthentication(TokenAuthentication):
    """`Authorization: Token SECRET`. DRF's own keeps secrets readable in the database; ours are digests."""

    def authenticate_credentials(self, key: str) -> tuple[User, AccessToken]:
        """Unknown and expired tokens and those of deactivated people are refused alike."""
        try:
            token = selectors.get_access_token(digest_secret(key))
        except AccessToken.DoesNotExist as error:
            raise AuthenticationFailed("Invalid token.") from error
        if not token.user.is_active:
            raise AuthenticationFailed("Invalid token.")
        return token.user, token


class BrowserAuthentication(SessionAuthentication):
    """The session of console and portal, under the same condition as their pages."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        found: tuple[User, None] | None = super().authenticate(request)
        if found is not None and lacks_second_factor(found[0]):
            raise PermissionDenied("Set up a second factor first: this installation asks for one.")
        return found

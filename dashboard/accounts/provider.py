"""Logging in by an OpenID Connect provider: who is let in, and as whom."""

from typing import Any, Final

import jwt
import requests
import structlog
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from redis.exceptions import RedisError

from core.refusals import InvalidInput
from tenants import services
from tenants.actor import SYSTEM, user_actor
from tenants.models import User
from tenants.principal import subject_uuid
from tenants.reads.people import has_open_invitation
from tenants.second_factor import has_second_factor
from tenants.services.people import link_provider
from tenants.services.role_mappings import roles_given_by

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
"""Signatures by a private key only: a secret that both sides know, or none, proves nothing here."""
_LEEWAY_SECONDS: Final = 60

log = structlog.get_logger(__name__)


class IssuerOAuth2Adapter(OpenIDConnectOAuth2Adapter):
    """Checks the ID token's signature also when it came straight from the provider, and its issuer by our setting."""

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any) -> SocialLogin:
        id_token = kwargs["response"].get("id_token")
        if not id_token:
            raise OAuth2Error("the provider sent no ID token")
        claims = self._decode_id_token(app, id_token)
        told = self._fetch_user_info(token.token) if self.openid_config.get("userinfo_endpoint") else {}
        if told and told.get("sub") != claims["sub"]:  # OpenID Connect Core 5.3.2
            raise OAuth2Error("the provider's user information is someone else's")
        login = self.get_provider().sociallogin_from_response(request, {"id_token": claims, "userinfo": told})
        login.claims = {**told, **claims}  # the ID token, which is signed, wins
        login.claims["email"] = _verified_email(claims, told)
        return login

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        """The address that the provider knows us by: behind a proxy the request's own is another."""
        if settings.GATEHOUSE.web_url is None:
            return str(super().get_callback_url(request, app))
        path: str = reverse("openid_connect_callback", kwargs={"provider_id": self.provider_id})
        return settings.GATEHOUSE.web_url.rstrip("/") + path

    def _decode_id_token(self, app: SocialApp, id_token: str) -> dict[str, Any]:
        """Raises OAuth2Error for a token that is not the provider's word to us, now."""
        try:
            header = jwt.get_unverified_header(id_token)
            key = self._signing_key(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                id_token,
                key=key.key,
                algorithms=list(ALGORITHMS),
                audience=app.client_id,
                issuer=app.settings["issuer"],
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "sub", "aud", "iss"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise OAuth2Error(f"the ID token is not valid: {error}") from error
        return claims

    def _signing_key(self, key_id: str | None) -> jwt.PyJWK:
        with get_adapter().get_requests_session() as session:
            response = session.get(self.openid_config["jwks_uri"])
            response.raise_for_status()
            keys = jwt.PyJWKSet.from_dict(response.json()).keys
        for key in keys:
            if key_id is None and len(keys) == 1:
                return key
            if key.key_id == key_id:
                return key
        raise OAuth2Error("the ID token is signed with a key that the provider does not show")


class IssuerProvider(OpenIDConnectProvider):
    """People are known by issuer and subject together: another issuer's subjects are other people."""

    oauth2_adapter_class = IssuerOAuth2Adapter

    def extract_extra_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Nothing: claims are personal, and nothing reads them later."""
        return {}

    def extract_uid(self, data: dict[str, Any]) -> str:
        claims = data["id_token"]
        return str(subject_uuid(claims["iss"], claims["sub"]))


def admit(request: HttpRequest, login: SocialLogin) -> None:
    """Find or make the person that the provider names, and give them what its claims stand for.

    Someone who was here before is known by issuer and subject. An address is taken for someone's only when the
    provider has verified it, and a password that was set before then opens the account no longer. Nobody is made
    unless they are invited or a role mapping knows them. Raises ImmediateHttpResponse with a page that says why not.
    """
    claims: dict[str, Any] = login.claims
    if login.state.get("process", "login") != "login":
        raise _refused(request, "connect")
    with transaction.atomic():
        if not login.is_existing:
            login.connect(request, _person_of(request, claims))
            link_provider(login.user.pk, login.account.provider, actor=user_actor(login.user.pk))
        user = login.user
        assert isinstance(user, User)
        if user.is_active:
            login.user = services.apply_claims(user, claims, actor=user_actor(user.pk))
            if claims["email"] == user.email:
                services.accept_open_invitations(user, actor=user_actor(user.pk))


def _person_of(request: HttpRequest, claims: dict[str, Any]) -> User:
    email = claims["email"]
    if email is None:
        raise _refused(request, "unverified")
    found = User.objects.filter(email=email).first()
    if found is not None:
        if has_second_factor(found):  # who set it up may be another than whose address it is
            raise _refused(request, "second_factor")
        return found
    given = roles_given_by(claims)
    if not (given.platform_role or given.tenant_roles or has_open_invitation(email)):
        raise _refused(request, "uninvited")
    name = claims.get("name")
    try:
        return services.create_user(
            email=email, password=None, display_name=name[:120] if isinstance(name, str) else "", actor=SYSTEM
        )
    except InvalidInput as error:
        log.warning("provider_login_refused", reason=error.message, field=error.field)
        raise _refused(request, "unverified") from error


def _verified_email(claims: dict[str, Any], told: dict[str, Any]) -> str | None:
    """The one address of ID token and user information. What verifies one must not pass for the other's."""
    addresses = {one["email"].strip().lower() for one in (claims, told) if isinstance(one.get("email"), str)}
    verified = claims.get("email_verified", told.get("email_verified")) in (True, "true")
    return (addresses.pop() or None) if len(addresses) == 1 and verified else None


def _refused(request: HttpRequest, reason: str) -> ImmediateHttpResponse:
    return ImmediateHttpResponse(render(request, "accounts/refused.html", {"reason": reason}, status=403))


def begin(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Send the browser to the provider."""
    return _with_provider(request, provider_id, OAuth2LoginView)


def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Where the provider sends it back."""
    return _with_provider(request, provider_id, OAuth2CallbackView)


def _with_provider(request: HttpRequest, provider_id: str, view: Any) -> HttpResponse:
    adapter = IssuerOAuth2Adapter(request, provider_id)
    try:
        response: HttpResponse = view.adapter_view(adapter)(request)
    except SocialApp.DoesNotExist as error:
        raise Http404 from error
    except (requests.RequestException, RedisError, KeyError, TypeError, ValueError, AttributeError) as error:
        # What a provider answers can be anything; whoever logs in is told, and others get in with a password.
        log.warning("provider_failed", error=repr(error))
        response = render_authentication_error(request, adapter.get_provider(), exception=error)
    return response

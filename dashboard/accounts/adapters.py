"""What django-allauth leaves to its site: where secrets go, who may come in, and what is said."""

from typing import Any, Final

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter, _build_apps_from_settings
from allauth.socialaccount.models import SocialLogin
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy as _

from core.sealing import seal, unseal
from dashboard.accounts.provider import IssuerProvider, admit
from tenants.models import User
from tenants.second_factor import has_second_factor

_PURPOSE: Final = "second factor"
"""Changing it would make every second factor unreadable."""
WRONG_CODE: Final = _("This code is not right, or was used before.")


class AccountAdapter(DefaultAccountAdapter):
    """People are made by invitation, by operators and by a provider's claims, never by themselves."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "incorrect_code": WRONG_CODE,
        "incorrect_password": _("This password is not right."),
        "enter_current_password": _("This password is not right."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def add_message(self, *args: Any, message: str | Promise | None = None, **kwargs: Any) -> None:
        """Only what we said ourselves: allauth's own texts are in no catalogue of ours."""
        if message:
            super().add_message(*args, message=str(message), **kwargs)

    def send_notification_mail(self, *args: Any, **kwargs: Any) -> None:
        """The audit log tells; mail is sent by tenants.services alone."""

    def is_safe_url(self, url: str | None) -> bool:
        """Only within this site: another port of this host is another."""
        request = context.request
        return url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Not of people who log in by a provider alone: they have nothing to prove themselves with anew."""
        user = context.request.user
        if isinstance(user, User) and not user.has_usable_password() and not has_second_factor(user):
            return False
        return bool(super().is_reauthentication_required(app=app, **kwargs))

    def reauthenticate(self, user: AbstractBaseUser, password: str) -> bool:
        """Without allauth's search for the address in tables that we do not keep."""
        return user.check_password(password)


class SecondFactorAdapter(DefaultMFAAdapter):
    """Secrets of second factors are sealed: the database holds none that can be read."""

    error_messages = {**DefaultMFAAdapter.error_messages, "incorrect_code": WRONG_CODE}

    def encrypt(self, text: str) -> str:
        return seal(text, _PURPOSE)

    def decrypt(self, encrypted_text: str) -> str:
        """Raises core.sealing.Unreadable after a change of SECRET_KEY; `manage.py recover` helps."""
        return unseal(encrypted_text, _PURPOSE)

    def _get_site_name(self) -> str:
        return "Gatehouse"


class ProviderAdapter(DefaultSocialAccountAdapter):
    """Providers stand in the settings; their secrets in no table."""

    def list_apps(self, request: HttpRequest, provider: Any = None, client_id: Any = None) -> list[Any]:
        found = _build_apps_from_settings(provider=provider, client_id=client_id)
        return [app for apps in found.values() for app in apps]

    def get_provider(self, request: HttpRequest, provider: str, client_id: str | None = None) -> IssuerProvider:
        return IssuerProvider(request, app=self.get_app(request, provider=provider, client_id=client_id))

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        admit(request, sociallogin)

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return False

"""Logging in with a password."""

from typing import Any

from allauth.socialaccount.adapter import get_adapter
from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext

from dashboard.access import signed_in
from dashboard.accounts.log_in import log_in
from dashboard.forms import LoginForm
from dashboard.login_guard import PAUSE_SECONDS
from tenants.models import User
from tenants.second_factor import lacks_second_factor


class LoginView(views.LoginView):
    """Django's own, which follows `next` only within this site and gives the session a new key."""

    form_class = LoginForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """To the second factor of who has one, else in."""
        user = form.get_user()
        assert isinstance(user, User)
        return log_in(self.request, user, method="password", then=self.get_success_url())

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        providers = [
            (_called(provider.name), provider.get_login_url(self.request, next=self.get_redirect_url() or "/"))
            for provider in get_adapter().list_providers(self.request)
        ]
        return {**super().get_context_data(**kwargs), "providers": providers}

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        if form.has_error(NON_FIELD_ERRORS, "throttled"):
            response.status_code = 429
            response["Retry-After"] = str(PAUSE_SECONDS)
        return response


def _called(name: str) -> str:
    """A provider by its name, or by what one without a name is called (GATEHOUSE_OIDC_NAME)."""
    return gettext("single sign-on") if name == "single sign-on" else name


def backoffice(request: HttpRequest) -> HttpResponseBase:
    """Where the backoffice sends people to log in: to our page, for its own would know no pause.

    Those who are logged in and may not enter are told so.
    """
    if not request.user.is_authenticated:
        return redirect_to_login(request.GET.get("next") or "/backoffice/")
    if not request.user.is_staff:
        raise PermissionDenied
    if lacks_second_factor(signed_in(request)):
        return redirect("mfa_index")
    return redirect("/backoffice/")

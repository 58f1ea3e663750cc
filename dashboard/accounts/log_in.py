"""Pages of logging in after the password: second factor, passkey, recovery link; and what is said when it fails."""

import time
from typing import Any, Final

from allauth.account import app_settings
from allauth.account.internal.flows.login import perform_login, record_authentication
from allauth.account.models import Login
from allauth.mfa.base.views import AuthenticateView
from allauth.mfa.webauthn.views import LoginWebAuthnView
from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from dashboard.accounts.forms import LoginPasskeyForm, SecondFactorForm, SecondPasskeyForm
from dashboard.login_guard import PAUSE_SECONDS
from tenants import services
from tenants.models import LoginLink, User

CAME_BY_LINK_UNTIL: Final = "came_by_link_until"
"""In the session of who came by a link: until when (seconds since the epoch) no old password is asked for."""


def log_in(request: HttpRequest, user: User, *, method: str, then: str) -> HttpResponse:
    """Go on with someone who proved who they are by `method`: to their second factor, or in, to `then`.

    Whoever was logged in is so no longer: else the second step would leave the browser with the one before.
    """
    if request.user.is_authenticated:
        logout(request)
    record_authentication(request, user, method=method)
    response: HttpResponse = perform_login(request, Login(user=user, redirect_url=then))
    return response


class SecondFactorView(AuthenticateView):
    """Asks for a code or a passkey of someone whose password was right."""

    form_class = SecondFactorForm
    webauthn_form_class = SecondPasskeyForm
    template_name = "accounts/second_factor.html"

    def form_invalid(self, form: Any) -> HttpResponse:
        response: HttpResponse = super().form_invalid(form)
        if form.has_error("code", "throttled"):
            response.status_code = 429
            response["Retry-After"] = str(PAUSE_SECONDS)
        return response


class PasskeyLoginView(LoginWebAuthnView):
    """GET tells the script what to ask the browser for; POST takes what it answered."""

    form_class = LoginPasskeyForm

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = super().get(request, *args, **kwargs)
        if isinstance(response, JsonResponse):
            response["Cache-Control"] = "no-store"
        return response

    def form_invalid(self, form: Any) -> HttpResponse:
        messages.error(self.request, _("This passkey is not known here."))
        return HttpResponseRedirect(reverse("login"))


@never_cache
@require_http_methods(["GET", "POST"])
def link(request: HttpRequest, secret: str) -> HttpResponse:
    """A recovery link (`manage.py recover`). GET only asks: what previews links must not use it up."""
    if request.method != "POST":
        return render(request, "accounts/login_link.html")
    try:
        user = services.use_login_link(secret)
    except LoginLink.DoesNotExist:
        return render(request, "accounts/refused.html", {"reason": "link"}, status=404)
    response = log_in(request, user, method="link", then=reverse("account_change_password"))
    if request.user == user:
        record_authentication(request, user, method="link", reauthenticated=True)
        request.session[CAME_BY_LINK_UNTIL] = time.time() + app_settings.REAUTHENTICATION_TIMEOUT
    return response


@never_cache
def inactive(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/refused.html", {"reason": "inactive"}, status=403)


@never_cache
def cancelled(request: HttpRequest) -> HttpResponse:
    messages.warning(request, _("You did not log in at the provider."))
    return redirect("login")

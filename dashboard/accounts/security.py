"""One's own security: second factors and password. Sensitive steps ask for the password or a factor anew."""

import time
from typing import Any

from allauth.account.views._reauthenticate import ReauthenticateView
from allauth.mfa.base.views import IndexView
from allauth.mfa.base.views import ReauthenticateView as CodeReauthenticateView
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.views import GenerateRecoveryCodesView, ViewRecoveryCodesView
from allauth.mfa.totp.internal.auth import clear_totp_secret
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from allauth.mfa.webauthn.internal import auth as webauthn
from allauth.mfa.webauthn.views import AddWebAuthnView, ReauthenticateWebAuthnView, RemoveWebAuthnView
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.access import own_security_page, signed_in
from dashboard.accounts.forms import (
    AppForm,
    ChangePasswordForm,
    ConfirmCodeForm,
    ConfirmPasskeyForm,
    ConfirmPasswordForm,
    NewPasswordForm,
    PasskeyForm,
)
from dashboard.accounts.log_in import CAME_BY_LINK_UNTIL
from tenants import services
from tenants.actor import user_actor
from tenants.second_factor import lacks_second_factor, must_have_second_factor
from tenants.services.second_factors import record_second_factor


def _recorded(request: HttpRequest, verb: str, kind: str) -> None:
    user = signed_in(request)
    record_second_factor(verb, user, kind, actor=user_actor(user.pk))


class SecurityView(IndexView):
    """What is set up, and what must be."""

    template_name = "accounts/security.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        user = signed_in(self.request)
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | {
            "app": context["authenticators"].get(Authenticator.Type.TOTP),
            "passkeys": context["authenticators"].get(Authenticator.Type.WEBAUTHN, []),
            "codes": context["authenticators"].get(Authenticator.Type.RECOVERY_CODES),
            "required": must_have_second_factor(user),
            "lacking": lacks_second_factor(user),
        }


class ConfirmPasswordView(ReauthenticateView):
    form_class = ConfirmPasswordForm
    template_name = "accounts/confirm.html"


class ConfirmCodeView(CodeReauthenticateView):
    form_class = ConfirmCodeForm
    template_name = "accounts/confirm.html"


class ConfirmPasskeyView(ReauthenticateWebAuthnView):
    form_class = ConfirmPasskeyForm
    template_name = "accounts/confirm.html"

    def form_invalid(self, form: Any) -> HttpResponse:
        messages.error(self.request, _("This passkey is not known here."))
        return redirect("mfa_index")


class AddAppView(ActivateTOTPView):
    form_class = AppForm
    template_name = "accounts/app.html"

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "request": self.request}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        drawing = context["totp_svg"]
        secret = context["form"].secret
        return (
            context
            | {
                # The drawing is made here, from our own address of the secret.
                "drawing": mark_safe(drawing[drawing.index("<svg") :]),  # noqa: S308
                "secret": " ".join(secret[start : start + 4] for start in range(0, len(secret), 4)),
            }
        )

    def form_valid(self, form: AppForm) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            _recorded(self.request, "added", "totp")
        clear_totp_secret(self.request)
        messages.success(self.request, _("Your authenticator app is set up."))
        return response


class RemoveAppView(DeactivateTOTPView):
    template_name = "accounts/remove.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "what": _("the authenticator app")}

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            _recorded(self.request, "removed", "totp")
        messages.success(self.request, _("Your authenticator app is removed."))
        return response


class AddPasskeyView(AddWebAuthnView):
    form_class = PasskeyForm
    template_name = "accounts/passkey.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        # One that the browser keeps and that asks for a fingerprint or PIN, so that it logs in on its own.
        context["js_data"] = {"creation_options": webauthn.begin_registration(signed_in(self.request), True)}
        return context

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            _recorded(self.request, "added", "webauthn")
        messages.success(self.request, _("The passkey is added."))
        return response


class RemovePasskeyView(RemoveWebAuthnView):
    template_name = "accounts/remove.html"
    success_url = reverse_lazy("mfa_index")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        name = self.object.wrap().name
        return {**super().get_context_data(**kwargs), "what": _("the passkey “%(name)s”") % {"name": name}}

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            _recorded(self.request, "removed", "webauthn")
        messages.success(self.request, _("The passkey is removed."))
        return response


class RecoveryCodesView(ViewRecoveryCodesView):
    """The codes, the first time; then only how many are left."""

    template_name = "accounts/recovery_codes.html"


class RenewRecoveryCodesView(GenerateRecoveryCodesView):
    template_name = "accounts/renew_codes.html"

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            _recorded(self.request, "renewed", "recovery_codes")
        return response


@own_security_page
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Change one's password; all other sessions end with the old one."""
    user = signed_in(request)
    fresh = request.session.get(CAME_BY_LINK_UNTIL, 0) > time.time()
    form = (NewPasswordForm if fresh else ChangePasswordForm)(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        user = services.change_password(user.pk, form.cleaned_data["new_password1"], actor=user_actor(user.pk))
        request.session.pop(CAME_BY_LINK_UNTIL, None)
        update_session_auth_hash(request, user)
        messages.success(request, _("Your password is changed; other sessions are logged out."))
        return redirect(reverse("mfa_index"))
    status = 422 if request.method == "POST" else 200
    usable = fresh or user.has_usable_password()
    return render(request, "accounts/password.html", {"form": form, "fresh": fresh, "usable": usable}, status=status)

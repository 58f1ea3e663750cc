"""Forms of logging in and of one's own security."""

from typing import TYPE_CHECKING, Any, Final

from allauth.account.forms import ReauthenticateForm
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as ReauthenticateByCodeForm
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import SECRET_SESSION_KEY, generate_totp_secret
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from django import forms
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from core.sealing import Unreadable, seal, unseal
from dashboard.accounts.adapters import WRONG_CODE
from dashboard.login_guard import PAUSE_SECONDS, LoginGuard
from tenants.models import User
from tenants.services.second_factors import accept_code, totp_counter

if TYPE_CHECKING:
    _SetPasswordForm = SetPasswordForm[User]
else:
    _SetPasswordForm = SetPasswordForm  # generic for the type checker only

_SETUP: Final = "second factor being set up"
_THROTTLED: Final = _("Too many attempts for this account. Try again in %(minutes)s minutes.")


def _code_field(label: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=20,
        widget=forms.TextInput(
            attrs={"autocomplete": "one-time-code", "inputmode": "numeric", "autofocus": True, "spellcheck": "false"}
        ),
    )


def _admitted(user: User, what: str) -> LoginGuard:
    """Counts an attempt; whoever guesses has the password already, so the address does not count.

    Raises ValidationError with the code `throttled` after too many.
    """
    guard = LoginGuard(str(user.pk), what)
    if not guard.admit():
        raise ValidationError(_THROTTLED, code="throttled", params={"minutes": PAUSE_SECONDS // 60})
    return guard


class _CodeForm(AuthenticateForm):
    code = _code_field(_("Code from the app, or a recovery code"))

    def clean_code(self) -> str:
        """Raises ValidationError for a wrong or used code, and after too many attempts."""
        code: str = self.cleaned_data["code"]
        guard = _admitted(self.user, "second factor")
        self.authenticator = accept_code(self.user, code)
        if self.authenticator is None:
            raise ValidationError(WRONG_CODE, code="incorrect_code")
        guard.forget()
        return code


class SecondFactorForm(_CodeForm):
    """The second step of logging in."""


class ConfirmCodeForm(_CodeForm, ReauthenticateByCodeForm):
    """The same before something sensitive."""

    save = ReauthenticateByCodeForm.save


class ConfirmPasswordForm(ReauthenticateForm):
    """One's password before something sensitive."""

    password = forms.CharField(
        label=_("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "autofocus": True}),
    )

    def clean_password(self) -> str:
        guard = _admitted(self.user, "confirm")
        password: str = super().clean_password()
        guard.forget()
        return password


class AppForm(ActivateTOTPForm):
    """Setting up an authenticator app. Until it is confirmed the secret is in the session, sealed."""

    code = _code_field(_("Code that the app shows"))

    def __init__(self, *args: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
        forms.Form.__init__(self, *args, **kwargs)
        self.user = user
        self.secret = self._kept(request) or generate_totp_secret()
        request.session[SECRET_SESSION_KEY] = seal(self.secret, _SETUP)

    def clean_code(self) -> str:
        code: str = self.cleaned_data["code"].replace(" ", "")
        if totp_counter(self.secret, code) is None:
            raise ValidationError(_("This is not the code that the app should show now. Is the phone's clock right?"))
        return code

    @staticmethod
    def _kept(request: HttpRequest) -> str | None:
        sealed = request.session.get(SECRET_SESSION_KEY)
        try:
            return unseal(sealed, _SETUP) if sealed else None
        except Unreadable:
            return None


_NONSENSE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""What the reader of passkeys raises for answers that no browser gives."""


class _PasskeyProof(AuthenticateWebAuthnForm):
    def clean_credential(self) -> Any:
        """Raises ValidationError for what is no proof, however it is wrong."""
        try:
            return super().clean_credential()
        except _NONSENSE as error:
            raise ValidationError(WRONG_CODE, code="incorrect_code") from error


class SecondPasskeyForm(_PasskeyProof):
    """A passkey as the second step of logging in."""


class LoginPasskeyForm(_PasskeyProof, LoginWebAuthnForm):
    """A passkey that logs in on its own."""


class ConfirmPasskeyForm(_PasskeyProof, ReauthenticateWebAuthnForm):
    """A passkey before something sensitive."""


class PasskeyForm(AddWebAuthnForm):
    """A passkey: one that browsers find by themselves, so that it logs in without an address."""

    def clean(self) -> dict[str, Any]:
        """Raises ValidationError for what is no passkey, however it is wrong."""
        try:
            cleaned: dict[str, Any] = super().clean()
        except _NONSENSE as error:
            raise ValidationError(WRONG_CODE, code="incorrect_code") from error
        return cleaned

    passwordless = None  # always so
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=80,
        help_text=_("What you will know it by, such as “work laptop”."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )


class NewPasswordForm(_SetPasswordForm):
    """After coming in by a recovery link, or for whoever has none yet."""


class ChangePasswordForm(PasswordChangeForm):
    """With the old one."""

    def clean_old_password(self) -> str:
        guard = _admitted(self.user, "confirm")
        password: str = super().clean_old_password()
        guard.forget()
        return password


class AcceptForm(forms.Form):
    """What an invited person without an account says of themselves."""

    use_required_attribute = True

    display_name = forms.CharField(
        label=_("Your name"),
        max_length=120,
        widget=forms.TextInput(attrs={"autocomplete": "name", "autofocus": True}),
    )
    password = forms.CharField(
        label=_("Password"),
        strip=False,
        help_text=_("At least 12 characters."),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    again = forms.CharField(
        label=_("Password again"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("password") != cleaned.get("again"):
            self.add_error("again", _("The two passwords are not the same."))
        return cleaned


class InviteForm(forms.Form):
    """Whom to invite, as what, and for how long the link works."""

    use_required_attribute = True

    email = forms.EmailField(
        label=_("E-mail address"),
        widget=forms.EmailInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    role = forms.ChoiceField(label=_("Role"))
    days = forms.TypedChoiceField(
        label=_("The link works"),
        coerce=int,
        choices=((1, _("for one day")), (7, _("for 7 days")), (30, _("for 30 days"))),
        initial=7,
    )

    def __init__(self, *args: Any, roles: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["role"].choices = roles  # type: ignore[attr-defined]


class RoleForm(forms.Form):
    """A member's other role."""

    role = forms.ChoiceField(label=_("Role"))

    def __init__(self, *args: Any, roles: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["role"].choices = roles  # type: ignore[attr-defined]

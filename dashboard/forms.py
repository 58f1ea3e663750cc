"""Forms of the pages; they parse and say what is wrong, services decide."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.login_guard import PAUSE_SECONDS, LoginGuard
from dashboard.ranges import zone_names
from gateway.relay.clients import client_name
from tenants.services.keys import MAX_RPM

EXPIRIES: Final = (
    ("", _("Never")),
    ("7", _("In 7 days")),
    ("30", _("In 30 days")),
    ("90", _("In 90 days")),
    ("365", _("In one year")),
)

OVERLAPS: Final = (
    ("0", _("Not a second longer")),
    ("3600", _("For one hour")),
    ("86400", _("For one day")),
    ("604800", _("For 7 days")),
    ("2592000", _("For 30 days")),
)


class LoginForm(AuthenticationForm):
    """Django's own, with an e-mail address as the name."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": _("This e-mail address and password do not belong together."),
        "throttled": _("Too many attempts for this account. Try again in %(minutes)s minutes."),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = _("E-mail address")
        self.fields["username"].widget = forms.EmailInput(attrs={"autocomplete": "username", "autofocus": True})
        self.fields["password"].label = _("Password")

    def clean(self) -> dict[str, Any]:
        """Raises ValidationError with the code `throttled` after too many attempts, before looking at the password."""
        if not {"username", "password"} <= self.cleaned_data.keys():
            return super().clean()
        address = self.request.META.get("REMOTE_ADDR", "") if self.request else ""
        guard = LoginGuard(self.cleaned_data["username"], client_name(address))
        if not guard.admit():
            raise ValidationError(
                self.error_messages["throttled"], code="throttled", params={"minutes": PAUSE_SECONDS // 60}
            )
        cleaned = super().clean()
        guard.forget()
        return cleaned


class TimeZoneField(forms.CharField):
    """An IANA name of a zone."""

    def __init__(self, *, attrs: Mapping[str, str], **more: Any) -> None:
        plain = {"autocomplete": "off", "spellcheck": "false", **attrs}
        super().__init__(label=_("Time zone"), max_length=64, widget=forms.TextInput(attrs=plain), **more)

    def validate(self, value: str) -> None:
        super().validate(value)
        if value not in zone_names():
            raise ValidationError(_("There is no such time zone."), code="unknown")


class KeyForm(forms.Form):
    """A new API key. Without models chosen the key reaches whatever the tenant is granted."""

    use_required_attribute = True

    name = forms.CharField(
        label=_("Name"),
        max_length=80,
        help_text=_("Where the key will be used, such as “search-production”."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    expires = forms.ChoiceField(label=_("Expires"), choices=EXPIRIES, required=False)
    rpm_limit = forms.IntegerField(
        label=_("Requests a minute"),
        required=False,
        min_value=1,
        max_value=MAX_RPM,
        widget=forms.NumberInput(attrs={"inputmode": "numeric", "placeholder": _("No limit")}),
    )
    keep_alive = forms.BooleanField(
        label=_("Comments that keep silent streams alive"),
        required=False,
        initial=True,
        help_text=_("Take it off for clients that cannot read comments in a stream."),
    )
    models = forms.MultipleChoiceField(label=_("Models"), required=False, widget=forms.CheckboxSelectMultiple)

    def __init__(self, *args: Any, model_names: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["models"].choices = [(name, name) for name in model_names]  # type: ignore[attr-defined]

    def expires_at(self) -> datetime | None:
        """The chosen expiry from now on; None for never."""
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None


class RotateForm(forms.Form):
    """Another key in a key's place."""

    overlap = forms.ChoiceField(
        label=_("The old key works"),
        choices=OVERLAPS,
        initial=str(24 * 3600),
        widget=forms.Select(attrs={"autofocus": True}),
        help_text=_("Time to bring the new one to every application that has the old one."),
    )

    def overlap_time(self) -> timedelta:
        return timedelta(seconds=int(self.cleaned_data["overlap"]))


class AttachForm(forms.Form):
    """An engine that already runs. What cannot be is said by the service, field by field."""

    use_required_attribute = True

    url = forms.CharField(
        label=_("Address"),
        max_length=500,
        help_text=_("Where it answers, such as http://host:8000 or https://host."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autofocus": True, "inputmode": "url", "spellcheck": "false"}
        ),
    )
    engine = forms.ChoiceField(label=_("Engine"))
    slots = forms.IntegerField(
        label=_("Slots"),
        required=False,
        min_value=1,
        max_value=100_000,
        help_text=_("Requests that it works on at the same time."),
        widget=forms.NumberInput(attrs={"inputmode": "numeric", "placeholder": _("Unknown")}),
    )
    model = forms.CharField(
        label=_("Model"),
        max_length=200,
        help_text=_("The name that applications use; made where it is missing."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    served_name = forms.CharField(
        label=_("Name at the engine"),
        max_length=200,
        required=False,
        help_text=_("Where the engine knows the model by another name."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    credential_variable = forms.CharField(
        label=_("Variable with its key"),
        max_length=120,
        required=False,
        help_text=_("Set in the environment of relay, web and controller. The key itself is never stored."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "GATEHOUSE_ENGINE_KEY_…"}
        ),
    )

    def __init__(self, *args: Any, engines: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["engine"].choices = engines  # type: ignore[attr-defined]


class NodeForm(forms.Form):
    """A machine whose agent may connect. What its name may be is said by the service."""

    use_required_attribute = True

    name = forms.CharField(
        label=_("Name"),
        max_length=120,
        help_text=_("Such as the machine's host name: letters, digits, dots, dashes and underscores."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autofocus": True, "autocapitalize": "none", "spellcheck": "false"}
        ),
    )


class MaintenanceForm(forms.Form):
    """Why a node is out of service for a while."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, help_text=_("Everybody who looks at the node sees it."), strip=True
    )


class IsolationForm(forms.Form):
    """Why a device is taken out, and whether what runs there moves away."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, help_text=_("Everybody who looks at the node sees it."), strip=True
    )
    move_instances = forms.BooleanField(label=_("Stop what runs there and place it elsewhere"), required=False)

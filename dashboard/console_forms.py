"""Forms of the console's pages of tenancy; they parse and say what is wrong, services decide."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard import labels
from dashboard.forms import TimeZoneField
from tenants.models import ApiKey, Metric, PlatformRole, Tenant, TenantRole
from tenants.policies.money import micros_of
from tenants.policies.quota import MOST

_PLAIN: Final = {"autocomplete": "off", "spellcheck": "false"}
_GIB: Final = 2**30


class TenantBySlugField(forms.CharField):
    """A tenant by its address, "" for none. One of ten thousand is typed, not chosen from a list."""

    def clean(self, value: Any) -> Any:
        slug = super().clean(value)
        if not slug:
            return None
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise forms.ValidationError(_("There is no tenant of this address."), code="unknown")
        return tenant


class TenantForm(forms.Form):
    """A new tenant."""

    name = forms.CharField(
        label=_("Name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True})
    )
    slug = forms.SlugField(
        label=_("Address"),
        max_length=63,
        help_text=_("Stands in addresses and in every record, and stays: lower-case letters, digits and hyphens."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    sla_tier = forms.ChoiceField(label=_("Tier"), choices=list(labels.SLA_TIERS.items()), initial="bronze")
    time_zone = TimeZoneField(help_text=_("Its days and months begin by it, such as Asia/Shanghai."), attrs={})
    parent = TenantBySlugField(
        label=_("Department of"),
        required=False,
        max_length=63,
        help_text=_("The address of the tenant above it. Its use then counts into that one's limits, too."),
        widget=forms.TextInput(attrs=_PLAIN),
    )


class TierForm(forms.Form):
    sla_tier = forms.ChoiceField(label=_("Tier"), choices=list(labels.SLA_TIERS.items()))


class AmountField(forms.DecimalField):
    """An amount as people say it: of money in the currency, of GPU memory in GiB, else a whole number."""

    def __init__(self, **more: Any) -> None:
        super().__init__(
            min_value=Decimal("0.000001"),
            max_value=MOST,
            max_digits=22,
            decimal_places=6,
            widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
            **more,
        )


def amount_in_units(form: forms.Form, field: str, metric: str) -> int | None:
    """The field's value in the metric's units; None, with the field's error told, where it cannot be."""
    value = form.cleaned_data.get(field)
    if value is None:
        return None
    if metric == Metric.MONEY:
        return micros_of(value)
    scaled = value * _GIB if metric == Metric.GPU_MEMORY else value
    if scaled != int(scaled) and metric != Metric.GPU_MEMORY:
        form.add_error(field, _("Give a whole number."))
        return None
    return int(scaled)


def amount_as_said(amount: int, metric: str) -> str:
    """What AmountField shows of an amount in units, in as many places as it takes: bytes may be rounded."""
    if metric == Metric.MONEY:
        return f"{Decimal(amount) / 1_000_000:f}"
    if metric != Metric.GPU_MEMORY:
        return str(amount)
    text = f"{Decimal(amount) / _GIB:.6f}"
    return text.rstrip("0").rstrip(".")


class LimitForm(forms.Form):
    """A new limit: of everybody, of a tenant, or of one of its keys."""

    tenant = TenantBySlugField(
        label=_("Tenant"),
        required=False,
        max_length=63,
        help_text=_("Its address; empty: all tenants together."),
        widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True}),
    )
    subtree = forms.BooleanField(label=_("With all its departments"), required=False)
    key = forms.CharField(
        label=_("Key"),
        required=False,
        max_length=80,
        help_text=_("Name or last four characters of one of the tenant's keys; empty: all its keys."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    model = forms.CharField(
        label=_("Model"),
        required=False,
        max_length=200,
        help_text=_("Its name; empty: all models together."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    metric = forms.ChoiceField(
        label=_("What"),
        # Nothing holds requests yet: such a limit would count nothing.
        choices=[(value, label) for value, label in labels.METRICS.items() if value != Metric.HELD],
    )
    window = forms.ChoiceField(
        label=_("Over which time"),
        choices=list(labels.WINDOWS.items()),
        help_text=_("A minute is any 60 seconds; days and months are those of the tenant's zone."),
    )
    amount = AmountField(
        label=_("At most"), help_text=_("Money in the currency, GPU memory in GiB, else a whole number.")
    )
    refill_per_second = forms.FloatField(
        label=_("Comes back each second"),
        required=False,
        help_text=_("Of a token bucket, and only of that."),
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    alert_shares = forms.CharField(
        label=_("Tell at"),
        required=False,
        max_length=60,
        help_text=_("Percent of a budget by day or month at which people are told, such as 50, 80, 100."),
        widget=forms.TextInput(attrs={**_PLAIN, "inputmode": "numeric"}),
    )
    note = forms.CharField(label=_("Note"), required=False, max_length=200)

    def clean_alert_shares(self) -> list[int]:
        return _shares(self.cleaned_data["alert_shares"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        tenant, wanted = cleaned.get("tenant"), cleaned.get("key")
        cleaned["key"] = None
        if wanted and "tenant" in cleaned:
            if tenant is None:
                self.add_error("key", _("Name the key's tenant too."))
                return cleaned
            keys = ApiKey.objects.filter(tenant=tenant, revoked_at__isnull=True)
            found = list(keys.filter(name=wanted)[:2]) or list(keys.filter(last_four=wanted)[:2])
            if len(found) == 1:
                cleaned["key"] = found[0]
            else:
                self.add_error("key", _("Several keys are called so.") if found else _("The tenant has no such key."))
        return cleaned


class LimitChangeForm(forms.Form):
    """What can be changed of a limit; what it counts cannot."""

    amount = AmountField(
        label=_("At most"), help_text=_("Money in the currency, GPU memory in GiB, else a whole number.")
    )
    refill_per_second = forms.FloatField(
        label=_("Comes back each second"),
        required=False,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    alert_shares = forms.CharField(
        label=_("Tell at"),
        required=False,
        max_length=60,
        help_text=_("Percent of a budget by day or month at which people are told, such as 50, 80, 100."),
        widget=forms.TextInput(attrs={**_PLAIN, "inputmode": "numeric"}),
    )
    note = forms.CharField(label=_("Note"), required=False, max_length=200)

    def clean_alert_shares(self) -> list[int]:
        return _shares(self.cleaned_data["alert_shares"])


BOOSTS: Final = (
    ("1", _("For one hour")),
    ("24", _("For one day")),
    ("168", _("For 7 days")),
    ("720", _("For 30 days")),
)


class BoostForm(forms.Form):
    """More for a while."""

    amount = AmountField(
        label=_("At most, meanwhile"), help_text=_("Money in the currency, GPU memory in GiB, else a whole number.")
    )
    hours = forms.ChoiceField(label=_("How long"), choices=BOOSTS, initial="24")

    def until(self) -> datetime:
        return timezone.now() + timedelta(hours=int(self.cleaned_data["hours"]))


def _shares(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("%", "").replace(";", ",").split(",") if part.strip()]
    except ValueError:
        raise forms.ValidationError(_("Give percentages, such as 50, 80, 100."), code="invalid") from None


class PriceForm(forms.Form):
    """What a model costs from a moment on, in the currency."""

    model = forms.CharField(
        label=_("Model"), max_length=200, widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True})
    )
    effective_from = forms.DateTimeField(
        label=_("From"),
        required=False,
        help_text=_("Empty: from now on."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in PRICED:
            self.fields[name] = forms.DecimalField(
                label=label,
                required=False,
                min_value=0,
                max_value=1_000_000,
                decimal_places=6,
                widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off", "placeholder": "0"}),
            )

    def micros(self) -> dict[str, int]:
        return {f"{name}_micros": micros_of(self.cleaned_data[name] or Decimal(0)) for name, _label in PRICED}


PRICED: Final = (
    ("input", _("A million input tokens")),
    ("cached_input", _("A million cached input tokens")),
    ("output", _("A million output tokens")),
    ("request", _("A request")),
    ("gpu_second", _("A second of one GPU")),
)


class DecisionForm(forms.Form):
    """The answer to a request for more."""

    amount = AmountField(label=_("Grant instead"), required=False, help_text=_("Empty: what was asked for."))
    answer = forms.CharField(
        label=_("Note to the tenant"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class PlatformRoleForm(forms.Form):
    platform_role = forms.ChoiceField(
        label=_("Platform role"),
        required=False,
        choices=[("", _("None")), *((role.value, labels.PLATFORM_ROLES[role]) for role in PlatformRole if role)],
    )


class NewPersonForm(PlatformRoleForm):
    """Someone who works for the platform."""

    email = forms.EmailField(label=_("E-mail address"), max_length=254)
    display_name = forms.CharField(label=_("Name"), required=False, max_length=120)
    field_order = ("email", "display_name", "platform_role")


class RoleMappingForm(forms.Form):
    """A role that a claim of the identity provider stands for."""

    claim = forms.CharField(
        label=_("Claim"),
        max_length=200,
        help_text=_("A name, or a path of names: groups, realm_access.roles."),
        widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True}),
    )
    value = forms.CharField(
        label=_("Value"),
        max_length=200,
        help_text=_("Compared exactly; of a list any one."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    platform_role = forms.ChoiceField(
        label=_("Platform role"),
        required=False,
        choices=[("", _("None")), *((role.value, labels.PLATFORM_ROLES[role]) for role in PlatformRole if role)],
    )
    tenant = TenantBySlugField(
        label=_("Or in the tenant"), required=False, max_length=63, widget=forms.TextInput(attrs=_PLAIN)
    )
    tenant_role = forms.ChoiceField(
        label=_("the role"),
        required=False,
        choices=[("", _("None")), *((role.value, labels.TENANT_ROLES[role]) for role in TenantRole)],
    )

"""Forms of objectives and silences; they parse and say what is wrong, services decide."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from dashboard.labels import SLA_TIERS
from dashboard.slo_words import KINDS, seconds_text
from gateway.policies.slo import BOUNDS, MOST_WINDOW_DAYS, Kind
from tenants.models import Tenant

SILENCES: Final = (
    ("1", _("For one hour")),
    ("4", _("For 4 hours")),
    ("24", _("For one day")),
    ("168", _("For 7 days")),
)

SERVICE_FIELDS: Final = {"target": "target_percent"}
"""Fields that the services call otherwise."""


class ObjectiveForm(forms.Form):
    """A new objective, or one that is changed. `models`: names that the field of the model offers."""

    name = forms.CharField(
        label=_("Name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True})
    )
    kind = forms.ChoiceField(label=_("What is promised"), choices=list(KINDS.items()))
    threshold_seconds = forms.FloatField(
        label=_("Within, in seconds"),
        required=False,
        help_text=_("A bound of the histogram, such as 0.8; empty for availability."),
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off", "list": "slo-bounds"}),
    )
    target_percent = forms.FloatField(
        label=_("Of so many requests, in percent"),
        initial=99,
        min_value=50,
        max_value=99.999,
        help_text=_("Below 94 even a total outage burns too slowly for the page by 1 h & 5 m; below 84 for any page."),
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    window_days = forms.IntegerField(label=_("Over so many days"), initial=30, min_value=1, max_value=MOST_WINDOW_DAYS)
    model = forms.CharField(
        label=_("Model"),
        required=False,
        max_length=200,
        help_text=_("As requests name it; empty for all."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "list": "slo-models"}),
    )
    version_id = forms.ChoiceField(label=pgettext_lazy("objective", "Release"), required=False)
    tenant = forms.CharField(
        label=_("Tenant"),
        required=False,
        max_length=63,
        help_text=_("Its address; empty for all tenants. It sees the objective in its portal, and is told of alerts."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    tier = forms.ChoiceField(label=_("SLA tier"), required=False, choices=[("", _("All tiers")), *SLA_TIERS.items()])
    enabled = forms.BooleanField(label=_("Count, and tell of alerts"), required=False, initial=True)

    def __init__(
        self,
        *args: Any,
        releases: list[tuple[str, str]],
        models: Sequence[str] = (),
        of_tenant: bool = False,
        changing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.models = models
        field = self.fields["version_id"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", _("All releases")), *releases]
        if of_tenant:
            del self.fields["tenant"], self.fields["tier"], self.fields["version_id"]
        elif changing:
            del self.fields["tenant"]  # whose it is stays

    @property
    def bounds(self) -> list[tuple[str, str]]:
        """What the field of the threshold offers."""
        found = sorted({bound for kind in (Kind.TTFT, Kind.TPOT, Kind.QUEUE_WAIT) for bound in BOUNDS[kind]})
        return [(f"{bound:g}", seconds_text(bound)) for bound in found]

    def clean_tenant(self) -> Tenant | None:
        slug = self.cleaned_data["tenant"]
        if not slug:
            return None
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise ValidationError(_("There is no tenant of this address."), code="unknown")
        return tenant

    def values(self) -> dict[str, Any]:
        """As the services take them."""
        values = dict(self.cleaned_data)
        values["target"] = round(values.pop("target_percent") / 100, 8)
        if "version_id" in values:
            values["version_id"] = values["version_id"] or None
        return values


class SilenceForm(forms.Form):
    hours = forms.ChoiceField(label=_("How long"), choices=SILENCES)
    reason = forms.CharField(
        label=_("Why"), max_length=200, widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True})
    )

    @property
    def length(self) -> timedelta:
        return timedelta(hours=int(self.cleaned_data["hours"]))

"""Forms of the portal; they parse and say what is wrong, services decide."""

from datetime import datetime, time
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from dashboard.forms import TimeZoneField
from dashboard.reads.portal_limits import LimitNow
from tenants.models import Metric
from tenants.policies.money import MICROS, micros_of
from tenants.services.tenants import MOST_RETENTION_DAYS

_GIB: Final = 1 << 30


class _Asks(forms.Form):
    """Why, and until when."""

    use_required_attribute = True

    reason = forms.CharField(
        label=_("Why"),
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Those who run the platform read it. Say what it is for."),
    )
    until = forms.DateField(
        label=_("Until"),
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text=_("The last day of it; leave it empty to ask for good."),
    )

    def __init__(self, *args: Any, zone: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._zone = ZoneInfo(zone)

    def clean_until(self) -> datetime | None:
        """The end of that day in the tenant's zone."""
        day = self.cleaned_data["until"]
        return datetime.combine(day, time(23, 59, 59), tzinfo=self._zone) if day else None


class MoreForm(_Asks):
    """More than a limit allows. Money is typed in the currency, memory of GPUs in GiB."""

    amount = forms.DecimalField(
        label=_("New amount"), min_value=0, max_digits=24, decimal_places=6, widget=forms.TextInput()
    )
    field_order = ("amount", "until", "reason")

    def __init__(self, *args: Any, limit: LimitNow, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = limit
        self.fields["amount"].widget.attrs |= {"inputmode": "decimal", "autocomplete": "off", "autofocus": True}
        self.initial["amount"] = f"{Decimal(limit.amount * 2) / self._unit:f}"
        if limit.metric == Metric.GPU_MEMORY:
            self.fields["amount"].help_text = _("In GiB.")

    @property
    def _unit(self) -> int:
        return {Metric.MONEY: MICROS, Metric.GPU_MEMORY: _GIB}.get(Metric(self._limit.metric), 1)

    def clean_amount(self) -> int:
        """In the metric's own units."""
        typed: Decimal = self.cleaned_data["amount"]
        if self._limit.metric == Metric.MONEY:
            return micros_of(typed)
        scaled = typed * self._unit
        if scaled != int(scaled):
            raise ValidationError(gettext("Give a whole number."))
        return int(scaled)


class ModelAskForm(_Asks):
    """A model that the tenant may not use yet."""

    model = forms.CharField(
        label=_("Model"), max_length=200, widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )
    field_order = ("model", "until", "reason")


class RetentionForm(forms.Form):
    """How long what was said is kept."""

    response_retention_days = forms.IntegerField(
        label=_("Stored responses, days"),
        min_value=0,
        max_value=MOST_RETENTION_DAYS,
        help_text=_("What the Responses API stores for later questions. 0 stores none."),
    )
    conversation_retention_days = forms.IntegerField(
        label=_("Conversations, days"),
        min_value=0,
        max_value=MOST_RETENTION_DAYS,
        help_text=_("Of keys that keep their conversations. 0 keeps none."),
    )


class ZoneForm(forms.Form):
    """Where the tenant's days begin."""

    time_zone = TimeZoneField(
        help_text=_("An IANA name, such as Asia/Shanghai. Days and months of budgets and statements follow it."),
        attrs={"list": "zones"},
    )

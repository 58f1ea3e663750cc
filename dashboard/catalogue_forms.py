"""Forms of models and versions; they parse, services decide."""

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.refusals import said
from gpupool.models import ModelVersion
from gpupool.policies.plain_yaml import BadYaml, read_yaml
from gpupool.policies.version_needs import LARGEST_BYTES, LONGEST_TAG, MOST_DEVICES, VersionNeeds
from tenants.models import Tenant

_PLAIN: Final = {"autocomplete": "off", "spellcheck": "false"}
_NUMBER: Final = {"inputmode": "numeric"}
_AREA: Final = {"rows": 10, "spellcheck": "false", "class": "code"}
LARGEST_UPLOAD: Final = 2 * 1024 * 1024


class TenantField(forms.CharField):
    """A tenant by its slug, typed or chosen from a list; empty is none. Cleans to the tenant's id."""

    def clean(self, value: Any) -> UUID | None:
        slug = super().clean(value)
        if not slug:
            return None
        found = Tenant.objects.filter(slug=slug).values_list("pk", flat=True).first()
        if found is None:
            raise ValidationError(_("There is no such tenant."))
        return found


class JsonField(forms.CharField):
    """An object as JSON, in a text area; empty is None."""

    def clean(self, value: Any) -> dict[str, Any] | None:
        text = super().clean(value)
        if not text.strip():
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValidationError(_("This is not JSON: %(why)s") % {"why": str(error)}) from error
        if not isinstance(found, dict):
            raise ValidationError(_("An object in braces is expected."))
        return found


class ModelForm(forms.Form):
    """A new name at the door."""

    use_required_attribute = True

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=200,
        help_text=gettext_lazy("What applications call it by."),
        widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True}),
    )
    description = forms.CharField(
        label=gettext_lazy("Description"), required=False, max_length=10_000, widget=forms.Textarea(attrs={"rows": 3})
    )
    tenant_id = TenantField(
        label=gettext_lazy("Private to tenant"),
        required=False,
        max_length=64,
        help_text=gettext_lazy("By its slug. Nobody else learns of the model."),
        widget=forms.TextInput(attrs={**_PLAIN, "list": "tenant-slugs"}),
    )


class AliasForm(forms.Form):
    """Another name of a model."""

    use_required_attribute = True

    name = forms.CharField(
        label=gettext_lazy("Another name"), max_length=200, widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True})
    )


class GrantForm(forms.Form):
    """A tenant that may call the model."""

    use_required_attribute = True

    tenant = TenantField(
        label=gettext_lazy("Tenant"),
        max_length=64,
        help_text=gettext_lazy("By its slug."),
        widget=forms.TextInput(attrs={**_PLAIN, "list": "tenant-slugs", "autofocus": True}),
    )


class VersionForm(forms.Form):
    """A version: what an engine loads, and what one instance of it needs."""

    use_required_attribute = True

    name = forms.CharField(
        label=gettext_lazy("Version"),
        max_length=80,
        help_text=gettext_lazy("Such as v2, or 2026-11-fp8."),
        widget=forms.TextInput(attrs={**_PLAIN, "autofocus": True}),
    )
    engine = forms.ChoiceField(label=gettext_lazy("Engine"))
    artefact_uri = forms.CharField(
        label=gettext_lazy("Artefact"),
        max_length=500,
        required=False,
        help_text=gettext_lazy("file:///PATH or package:MODULE/FILE, on nodes. Empty: attached engines only."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    served_name = forms.CharField(
        label=gettext_lazy("Name at the engine"),
        max_length=200,
        required=False,
        help_text=gettext_lazy("Empty: the model's name."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    engine_args = JsonField(
        label=gettext_lazy("Arguments"),
        required=False,
        max_length=20_000,
        help_text=gettext_lazy('As JSON, such as {"max_model_len": 8192}; the engine refuses what it does not know.'),
        widget=forms.Textarea(attrs={**_AREA, "rows": 4}),
    )
    device_kind = forms.ChoiceField(
        label=gettext_lazy("Runs on"),
        choices=(("gpu", gettext_lazy("GPUs")), ("cpu", gettext_lazy("The host's processor"))),
    )
    devices = forms.IntegerField(
        label=gettext_lazy("Devices of one instance"),
        initial=1,
        min_value=1,
        max_value=MOST_DEVICES,
        widget=forms.NumberInput(attrs=_NUMBER),
    )
    memory_gib = forms.FloatField(
        label=gettext_lazy("Claims of each device, in GiB"),
        required=False,
        min_value=0,
        max_value=LARGEST_BYTES / 2**30,
        help_text=gettext_lazy("Empty: as it is estimated, where its files can be read here."),
        widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
    )
    gpu_tag = forms.CharField(
        label=gettext_lazy("GPU tag"), required=False, max_length=LONGEST_TAG, widget=forms.TextInput(attrs=_PLAIN)
    )
    topology = forms.ChoiceField(
        label=gettext_lazy("Links between devices"),
        choices=(
            ("preferred", gettext_lazy("Preferred")),
            ("required", gettext_lazy("Required: within one domain")),
            ("any", gettext_lazy("Any")),
        ),
    )
    strategy = forms.ChoiceField(
        label=gettext_lazy("Placement"),
        choices=(("spread", gettext_lazy("Spread out")), ("pack", gettext_lazy("Packed tightly"))),
    )
    priority = forms.TypedChoiceField(
        label=gettext_lazy("Priority"),
        coerce=int,
        initial=0,
        choices=((0, gettext_lazy("Normal")), (1, gettext_lazy("High")), (-1, gettext_lazy("Low"))),
    )
    replicas = forms.IntegerField(
        label=gettext_lazy("Replicas"),
        initial=0,
        min_value=0,
        max_value=1000,
        help_text=gettext_lazy("Instances that the controller keeps once it is admitted."),
        widget=forms.NumberInput(attrs=_NUMBER),
    )
    tenant_id = TenantField(
        label=gettext_lazy("For one tenant alone"),
        required=False,
        max_length=64,
        help_text=gettext_lazy("By its slug: a version of its own, of a model that others share."),
        widget=forms.TextInput(attrs={**_PLAIN, "list": "tenant-slugs"}),
    )
    draft = forms.BooleanField(
        label=gettext_lazy("As a draft: it serves nothing until you say so"), required=False, initial=True
    )

    def __init__(self, *args: Any, engines: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["engine"].choices = engines  # type: ignore[attr-defined]  # a choice field

    def described(self) -> dict[str, Any]:
        """What `create_version` takes, but for the state."""
        values = dict(self.cleaned_data)
        gib = values.pop("memory_gib")
        values.pop("draft")
        needs = VersionNeeds(
            devices=values.pop("devices"),
            topology=values.pop("topology"),
            strategy=values.pop("strategy"),
            gpu_tag=values.pop("gpu_tag"),
            priority=values.pop("priority"),
        )
        return {
            **values,
            "engine_args": values["engine_args"] or {},
            "memory_bytes": 0 if gib is None else round(gib * 2**30),
            "needs": needs,
        }


class CardForm(forms.Form):
    """model-card.yaml of a draft."""

    card = forms.CharField(
        label=gettext_lazy("Model card (model-card.yaml)"),
        max_length=256 * 1024,
        widget=forms.Textarea(attrs={**_AREA, "rows": 20, "autofocus": True}),
    )

    def clean_card(self) -> dict[str, Any]:
        try:
            card = read_yaml(self.cleaned_data["card"].encode())
        except BadYaml as error:
            raise ValidationError(said(str(error))) from error
        if not isinstance(card, dict):
            raise ValidationError(_("A model card is an object with members such as model, version and licence."))
        return card


class ManifestForm(forms.Form):
    """What `manage.py manifest PATH` prints, of a draft."""

    manifest = JsonField(
        label=gettext_lazy("Manifest"),
        max_length=LARGEST_UPLOAD,
        help_text=gettext_lazy("What `manage.py manifest PATH` prints on a node that has the artefact."),
        widget=forms.Textarea(attrs={**_AREA, "rows": 12, "autofocus": True}),
    )


class AdmitForm(forms.Form):
    """What an admission may be given beside manifest and card."""

    bundle = JsonField(
        label=gettext_lazy("Signature (a Sigstore bundle)"),
        required=False,
        max_length=LARGEST_UPLOAD,
        widget=forms.Textarea(attrs={**_AREA, "rows": 4}),
    )
    sbom = JsonField(
        label=gettext_lazy("Bill of materials (CycloneDX or SPDX 2, JSON)"),
        required=False,
        max_length=LARGEST_UPLOAD,
        widget=forms.Textarea(attrs={**_AREA, "rows": 4}),
    )


class ReplicasForm(forms.Form):
    """How many instances the controller keeps."""

    use_required_attribute = True

    replicas = forms.IntegerField(
        label=gettext_lazy("Replicas"),
        min_value=0,
        max_value=1000,
        widget=forms.NumberInput(attrs={**_NUMBER, "autofocus": True}),
    )


class SwitchForm(forms.Form):
    """Which version this one is served instead of."""

    instead_of = forms.ChoiceField(label=gettext_lazy("Instead of"), widget=forms.Select(attrs={"autofocus": True}))

    def __init__(self, *args: Any, others: list[ModelVersion], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["instead_of"].choices = [(str(one.pk), one.name) for one in others]  # type: ignore[attr-defined]  # a choice field


def card_text(card: Mapping[str, Any], *, model: str, version: str) -> str:
    """A card as YAML, to be edited; without one, what a card needs."""
    if not card:
        return _TEMPLATE.format(model=json.dumps(model), version=json.dumps(version))
    return "\n".join(_yaml(dict(card)))


_TEMPLATE: Final = """model: {model}
version: {version}
licence:
intended_use:
base_models:
  - name:
    sha256:
data_sets:
  - name:
    sha256:
    sampling_share:
    de_identification:
"""


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    """Texts as JSON writes them, which YAML reads."""
    lines: list[str] = []
    for key, member in value.items():
        name = key if key.isidentifier() else json.dumps(key, ensure_ascii=False)
        if isinstance(member, Mapping):
            lines += [f"{indent}{name}:", *_yaml(member, indent + "  ")]
        elif isinstance(member, list):
            lines.append(f"{indent}{name}:")
            for one in member:
                inner = _yaml(one, indent + "    ") if isinstance(one, Mapping) else [f"{indent}    {json.dumps(one)}"]
                lines += [f"{indent}  - {inner[0].lstrip()}", *inner[1:]] if inner else [f"{indent}  - {{}}"]
        else:
            lines.append(f"{indent}{name}: {json.dumps(member, ensure_ascii=False)}")
    return lines

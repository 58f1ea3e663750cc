"""The form of “Will it fit?”: a version, and what is asked otherwise than it has it."""

from typing import Any, Final
from uuid import UUID

from django import forms
from django.utils.translation import gettext_lazy as _

from gpupool.models import ModelVersion
from gpupool.models.catalog import PAPERS
from gpupool.policies.estimate.kv_cache import CACHE_TYPES
from gpupool.policies.version_needs import LONGEST_TAG, MOST_DEVICES
from gpupool.reads.catalogue import list_launchable_versions
from gpupool.reads.dry_run import Question, of_version
from gpupool.reads.placement import mem_limit_bytes

_AS_IT_HAS_IT: Final = ("", _("As the version has it"))
_TOPOLOGIES: Final = (
    _AS_IT_HAS_IT,
    ("required", _("Required: within one domain")),
    ("preferred", _("Preferred")),
    ("any", _("Any")),
)
_FLASH: Final = (_AS_IT_HAS_IT, ("on", _("On")), ("off", _("Off")))
_NUMBER: Final = {"inputmode": "numeric"}


class FitForm(forms.Form):
    """Empty fields are as the version has them."""

    use_required_attribute = True

    version = forms.ChoiceField(label=_("Version"))
    devices = forms.IntegerField(
        label=_("Devices"), required=False, min_value=1, max_value=MOST_DEVICES, widget=forms.NumberInput(attrs=_NUMBER)
    )
    context_tokens = forms.IntegerField(
        label=_("Context in tokens"),
        required=False,
        min_value=1,
        max_value=1 << 24,
        widget=forms.NumberInput(attrs=_NUMBER),
    )
    cache_type = forms.ChoiceField(
        label=_("KV cache"), required=False, choices=(_AS_IT_HAS_IT, *((name, name) for name in CACHE_TYPES))
    )
    flash_attention = forms.ChoiceField(label=_("Flash attention"), required=False, choices=_FLASH)
    topology = forms.ChoiceField(label=_("Topology"), required=False, choices=_TOPOLOGIES)
    gpu_tag = forms.CharField(
        label=_("GPU tag"),
        required=False,
        max_length=LONGEST_TAG,
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        versions = list_launchable_versions().defer(*PAPERS)
        self._versions: dict[str, ModelVersion] = {str(one.pk): one for one in versions}
        self.fields["version"].choices = [  # type: ignore[attr-defined]
            (key, f"{one.model.name} {one.name}") for key, one in self._versions.items()
        ]

    def question(self) -> Question:
        """What a valid form asks."""
        values = self.cleaned_data
        asked = {
            "devices": values["devices"],
            "context": values["context_tokens"],
            "cache_type": values["cache_type"] or None,
            "flash_attention": {"on": True, "off": False}.get(values["flash_attention"]),
        }
        version = self._versions[str(UUID(values["version"]))]
        question = of_version(version, **{name: value for name, value in asked.items() if value is not None})
        return question.with_need(
            topology=values["topology"] or question.need.topology,
            gpu_tag=values["gpu_tag"] or question.need.gpu_tag,
            mem_limit_bytes=mem_limit_bytes(values["gpu_tag"] or question.need.gpu_tag, version.mem_limit_mb),
        )

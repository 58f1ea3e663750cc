"""Console: starting instances. Whether they fit is answered beside the form, before anything starts."""

from typing import Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.refusals import add_refusal
from dashboard.views.console.fit import breakdown
from gpupool import services
from gpupool.models import ModelVersion
from gpupool.models.catalog import RUNS
from gpupool.reads.catalogue import list_launchable_versions
from gpupool.reads.starting import StartAnswer, answer_start
from tenants.actor import user_actor
from tenants.models import Tenant, TenantState
from tenants.services import Conflict, InvalidInput

MOST_REPLICAS: Final = 1000
SHOWN_DEVICES: Final = 12
_MOST_TENANTS: Final = 500


class StartForm(forms.Form):
    """Replicas that the controller keeps of a version, or one instance that a tenant acquires for itself."""

    use_required_attribute = True

    version = forms.ChoiceField(label=gettext_lazy("Version"))
    replicas = forms.IntegerField(
        label=gettext_lazy("Replicas in all"),
        min_value=0,
        max_value=MOST_REPLICAS,
        required=False,
        help_text=gettext_lazy("What the controller keeps from then on: it replaces those that fail."),
        widget=forms.NumberInput(attrs={"inputmode": "numeric"}),
    )
    tenant = forms.ChoiceField(
        label=gettext_lazy("For one tenant alone"),
        required=False,
        help_text=gettext_lazy("It acquires an instance that serves nobody else; replicas stay as they are."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = list_launchable_versions().filter(state__in=RUNS).defer("manifest", "card", "checks")
        self._versions = {str(one.pk): one for one in rows}
        tenants = Tenant.objects.filter(state=TenantState.ACTIVE).order_by("slug").values_list("pk", "name")
        choices = {
            "version": [(key, f"{one.model.name} {one.name}") for key, one in self._versions.items()],
            "tenant": [("", _("No: replicas")), *((str(pk), name) for pk, name in tenants[:_MOST_TENANTS])],
        }
        for name, chosen in choices.items():
            self.fields[name].choices = chosen  # type: ignore[attr-defined]  # both are choice fields

    @property
    def versions(self) -> bool:
        """Whether there is any to start."""
        return bool(self._versions)

    def chosen(self) -> ModelVersion | None:
        """The version that is asked about, where there is one."""
        return self._versions.get(str(self["version"].value() or ""))

    def wanted(self, version: ModelVersion) -> int:
        """Replicas in all that are asked for; one more than now where nobody said."""
        try:
            return min(max(int(self["replicas"].value()), 0), MOST_REPLICAS)
        except (TypeError, ValueError):
            return version.replicas + 1

    @property
    def for_tenant(self) -> bool:
        return bool(self["tenant"].value())


@console_page
@require_http_methods(["GET", "POST"])
def start(request: HttpRequest) -> HttpResponse:
    """The form with the answer beside it; a POST starts."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    if request.method == "POST":
        form = StartForm(request.POST)
        if form.is_valid() and (response := _start(request, form)) is not None:
            return response
    else:
        form = StartForm(initial=_asked(request))
    status = 422 if request.method == "POST" else 200
    return render(request, "console/instance_new.html", {"form": form, **_answered(form)}, status=status)


@console_page
@require_safe
def answer(request: HttpRequest) -> HttpResponse:
    """The answer alone, for the form as it is filled in now."""
    return render(request, "console/_start_answer.html", _answered(StartForm(initial=_asked(request))))


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET[name] for name in ("version", "replicas", "tenant") if request.GET.get(name)}


def _answered(form: StartForm) -> dict[str, Any]:
    version = form.chosen()
    if version is None:
        return {"start": None, "version": None}
    wanted = form.wanted(version)
    more = 1 if form.for_tenant else max(0, wanted - version.replicas)
    found: StartAnswer = answer_start(version, more)
    return {
        "start": found,
        "answer": found.answer,
        "version": version,
        "more": more,
        "fewer": 0 if form.for_tenant else max(0, version.replicas - wanted),
        "wanted": wanted,
        "for_tenant": form.for_tenant,
        "tone": labels.TONES.get(found.verdict, "idle"),
        "breakdown": None if found.answer.estimate is None else breakdown(found.answer.estimate),
        "devices": found.answer.devices[:SHOWN_DEVICES],
        "cut": found.answer.device_count > SHOWN_DEVICES,
    }


def _start(request: HttpRequest, form: StartForm) -> HttpResponse | None:
    """Where to go on; None where a service refused, which the form says."""
    version, actor = form.chosen(), user_actor(signed_in(request).pk)
    assert version is not None  # a valid form has one
    try:
        if form.cleaned_data["tenant"]:
            acquired = services.acquire_instance(version.pk, UUID(form.cleaned_data["tenant"]), actor=actor)
            said = (
                _("It had an instance already, which serves it.") if acquired.reused else _("An instance is started.")
            )
            messages.success(request, said)
            return redirect("console-instance", acquired.instance.pk)
        wanted = form.cleaned_data["replicas"]
        if wanted is None:
            wanted = version.replicas + 1
        services.set_replicas(version.pk, wanted, actor=actor)
    except (InvalidInput, Conflict) as error:
        add_refusal(form, error)
        return None
    said = ngettext(
        "The controller keeps %(n)s instance of %(model)s %(version)s; what is missing appears here within seconds.",
        "The controller keeps %(n)s instances of %(model)s %(version)s; what is missing appears here within seconds.",
        wanted,
    )
    messages.success(request, said % {"n": wanted, "model": version.model.name, "version": version.name})
    return redirect("console-version", version.pk)

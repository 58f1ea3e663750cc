"""Console: one version of a model, from a draft to its requests and out of them again."""

import json
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.access import console_page, signed_in
from dashboard.catalogue_forms import (
    AdmitForm,
    CardForm,
    ManifestForm,
    ReplicasForm,
    SwitchForm,
    VersionForm,
    card_text,
)
from dashboard.frames import instance_rows
from dashboard.reads.models import files_of, offered_tenants, others_to_switch_from
from dashboard.refusals import add_refusal, all_said, said
from dashboard.sheets import leave, posted, sheet
from dashboard.version_steps import STEPS, possible_steps
from dashboard.views.console.fit import breakdown
from gpupool import selectors, services
from gpupool.admission_settings import admission_settings
from gpupool.models import Model, ModelVersion, VersionState
from gpupool.models.catalog import PAPERS_OF_VERSION
from gpupool.policies.admission import Rule
from gpupool.policies.estimate import CannotEstimate, Estimate
from gpupool.policies.simulated import is_simulated
from gpupool.reads import catalogue
from gpupool.reads.estimates import asked_of, corrected, estimate_asked
from gpupool.services.admission import NotAdmitted, card_faults
from tenants.actor import Actor, user_actor
from tenants.models import Tenant
from tenants.services import Conflict, InvalidInput

_SHOWN_INSTANCES = 50


@console_page
@require_safe
def page(request: HttpRequest, version_id: UUID) -> HttpResponse:
    version = _version(version_id)
    may_operate = signed_in(request).may_operate
    rows = selectors.list_instances().filter(version=version).exclude(state="stopped").defer(*PAPERS_OF_VERSION)
    estimate, no_estimate = _estimate(version)
    others = others_to_switch_from(version)
    return render(
        request,
        "console/version.html",
        {
            "version": version,
            "model": version.model,
            "owner": Tenant.objects.filter(pk=version.owner_id).first() if version.owner_id else None,
            "steps": possible_steps(version, switchable=bool(others)) if may_operate else [],
            "rows": instance_rows(rows[:_SHOWN_INSTANCES]),
            "arguments": sorted(version.engine_args.items()),
            "breakdown": None if estimate is None else breakdown(estimate),
            "estimate": estimate,
            "no_estimate": no_estimate,
            "files": files_of(version),
            "card": version.card,
            "card_faults": all_said(tuple(card_faults(version))) if version.card else [],
            "lineage": catalogue.lineage(version) if not _broken_manifest(version) else None,
            "admission": admission_settings().rule,
            "admission_required": admission_settings().rule is Rule.REQUIRED,
            "simulated": is_simulated(version.artefact_uri),
            "draft": version.state == VersionState.DRAFT,
            "way": ("draft", "admitted", "serving", "retired"),
            "may_operate": may_operate,
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest, model_id: UUID) -> HttpResponse:
    """A page of its own: there is much to say of a version."""
    actor = _operator(request)
    try:
        model = catalogue.list_models().get(pk=model_id)
    except Model.DoesNotExist as error:
        raise Http404 from error
    engines = [(one.name, one.title) for one in selectors.list_engines() if one.enabled]
    form = VersionForm(posted(request), engines=engines)
    if request.method == "POST" and form.is_valid():
        state = VersionState.DRAFT if form.cleaned_data["draft"] else None
        try:
            version = services.create_version(model, actor=actor, state=state, **form.described())
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error, fields={"memory_bytes": "memory_gib"})
        else:
            messages.success(request, _("%(version)s is made.") % {"version": f"{model.name} {version.name}"})
            return leave(request, "console-version", version.pk)
    status = 422 if request.method == "POST" else 200
    context = {
        "form": form,
        "model": model,
        "tenants": offered_tenants(),
        "admission_required": admission_settings().rule is Rule.REQUIRED,
    }
    return render(request, "console/version_new.html", context, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def card(request: HttpRequest, version_id: UUID) -> HttpResponse:
    """Its model card, as YAML; of a draft. It need not be complete yet: what admission would say is said at once."""
    actor, version = _operator(request), _version(version_id)
    text = card_text(version.card, model=version.model.name, version=version.name)
    form = CardForm(posted(request), initial={"card": text})
    if request.method == "POST" and form.is_valid():
        try:
            changed = services.change_version(version.pk, actor=actor, card=form.cleaned_data["card"])
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            faults = len(card_faults(changed))
            told = ngettext(
                "The card is kept. %(n)s thing in it is missing or wrong.",
                "The card is kept. %(n)s things in it are missing or wrong.",
                faults,
            )
            messages.success(request, told % {"n": faults} if faults else _("The card is kept, and complete."))
            return leave(request, "console-version", version.pk)
    return _form(request, "console/_version_card.html", form, version)


@console_page
@require_http_methods(["GET", "POST"])
def manifest(request: HttpRequest, version_id: UUID) -> HttpResponse:
    """Which files it has; of a draft. Nodes hold their files against it before a load."""
    actor, version = _operator(request), _version(version_id)
    initial = {"manifest": json.dumps(version.manifest, indent=2)} if version.manifest else {}
    form = ManifestForm(posted(request), initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_version(version.pk, actor=actor, manifest=form.cleaned_data["manifest"])
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            messages.success(request, _("The manifest is kept; files are checked against it before they are loaded."))
            return leave(request, "console-version", version.pk)
    return _form(request, "console/_version_manifest.html", form, version)


@console_page
@require_http_methods(["GET", "POST"])
def admit(request: HttpRequest, version_id: UUID) -> HttpResponse:
    """Look at what it is made of. What is missing or wrong is told at once, all of it."""
    actor, version = _operator(request), _version(version_id)
    form = AdmitForm(posted(request))
    faults: list[str] = []
    if request.method == "POST" and form.is_valid():
        bundle = form.cleaned_data["bundle"]
        try:
            services.admit_version(
                version.pk,
                actor=actor,
                bundle=None if bundle is None else json.dumps(bundle).encode(),
                sbom=form.cleaned_data["sbom"],
            )
        except NotAdmitted as error:
            faults = all_said(error.reasons)
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            messages.success(request, _("%(version)s is admitted. Its replicas load from now on.") % _name(version))
            return leave(request, "console-version", version.pk)
    return _form(request, "console/_version_admit.html", form, version, faults=faults, trust=_trusts())


@console_page
@require_http_methods(["GET", "POST"])
def switch(request: HttpRequest, version_id: UUID) -> HttpResponse:
    """Serve this one instead of another, in one step for every door."""
    actor, version = _operator(request), _version(version_id)
    form = SwitchForm(posted(request), others=others_to_switch_from(version))
    if request.method == "POST" and form.is_valid():
        try:
            services.switch_version(version.pk, instead_of=UUID(form.cleaned_data["instead_of"]), actor=actor)
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            messages.success(request, _("%(version)s serves in the other's place.") % _name(version))
            return leave(request, "console-version", version.pk)
    return _form(request, "console/_version_switch.html", form, version)


@console_page
@require_http_methods(["GET", "POST"])
def replicas(request: HttpRequest, version_id: UUID) -> HttpResponse:
    actor, version = _operator(request), _version(version_id)
    form = ReplicasForm(posted(request), initial={"replicas": version.replicas})
    if request.method == "POST" and form.is_valid():
        try:
            services.set_replicas(version.pk, form.cleaned_data["replicas"], actor=actor)
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            told = ngettext(
                "The controller keeps %(n)s instance.",
                "The controller keeps %(n)s instances.",
                form.cleaned_data["replicas"],
            )
            messages.success(request, told % {"n": form.cleaned_data["replicas"]})
            return leave(request, "console-version", version.pk)
    return _form(request, "console/_version_replicas.html", form, version)


@console_page
@require_http_methods(["GET", "POST"])
def step(request: HttpRequest, version_id: UUID, to: str) -> HttpResponse:
    """Serve, retire or reopen it: asks first, saying what happens to requests and instances."""
    actor, version = _operator(request), _version(version_id)
    chosen = STEPS.get(to)
    if chosen is None or chosen.act is None:
        raise Http404
    if request.method == "POST":
        try:
            chosen.act(version.pk, actor)
        except (InvalidInput, Conflict) as error:
            messages.error(request, said(error.message))
        else:
            messages.success(request, str(chosen.done) % _name(version))
        return leave(request, "console-version", version.pk)
    rows = selectors.list_instances().filter(version=version).exclude(state="stopped")
    serving = ModelVersion.objects.filter(model=version.model, state=VersionState.SERVING).exclude(pk=version.pk)
    context = {
        **_frame(version),
        "step": chosen,
        "instances": rows.count(),
        "ready": rows.filter(state="ready").count(),
        "others": serving.filter(tenant_id=version.tenant_id).count(),
    }
    return sheet(request, f"console/_version_{to}.html", context)


def _form(request: HttpRequest, template: str, form: forms.Form, version: ModelVersion, **context: Any) -> HttpResponse:
    status = 422 if request.method == "POST" else 200
    return sheet(request, template, {"form": form, **_frame(version), **context}, status=status)


def _version(version_id: UUID) -> ModelVersion:
    try:
        return catalogue.get_version(version_id)
    except ModelVersion.DoesNotExist as error:
        raise Http404 from error


def _operator(request: HttpRequest) -> Actor:
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    return user_actor(user.pk)


def _estimate(version: ModelVersion) -> tuple[Estimate | None, str]:
    try:
        return corrected(estimate_asked(asked_of(version)), version), ""
    except CannotEstimate as error:
        return None, str(error)


def _broken_manifest(version: ModelVersion) -> bool:
    files = files_of(version)
    return files is not None and bool(files.fault)


def _trusts() -> bool:
    return admission_settings().trust is not None


def _name(version: ModelVersion) -> dict[str, str]:
    return {"version": f"{version.model.name} {version.name}"}


def _frame(version: ModelVersion) -> dict[str, Any]:
    return {
        "version": version,
        "model": version.model,
        "title": f"{version.model.name} {version.name}",
        "back": reverse("console-version", args=[version.pk]),
    }

"""Console: objectives of the installation, their budgets, alerts and silences."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page
from dashboard.console_rights import allowed, require
from dashboard.filters import page_number, search_text
from dashboard.reads.slo import versions_of
from dashboard.reads.slo_list import read_listed
from dashboard.refusals import said, tried
from dashboard.sheets import leave, posted, sheet
from dashboard.slo_forms import SERVICE_FIELDS, ObjectiveForm, SilenceForm
from dashboard.slo_pages import TENANTS, Place, board_context, listed_context, releases
from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.reads.slo import asked_models, list_objectives
from gateway.services.objective_alerts import acknowledge_alert, create_silence, end_silence
from gateway.services.objectives import (
    change_objective,
    create_objective,
    create_tier_objectives,
    delete_objective,
)
from tenants.policies.roles import Action, Object
from tenants.services.errors import Conflict

HERE = Place()


@console_page
def page(request: HttpRequest, objective_id: UUID | None = None) -> HttpResponse:
    """The platform's objectives or those that tenants set up themselves, the worst first, and one of them whole."""
    manages = allowed(request, Action.CHANGE, Object.OBJECTIVE)
    listed = read_listed(
        of_tenants=request.GET.get("of") == TENANTS,
        words=search_text(request),
        chosen_id=objective_id,
        page=page_number(request),
    )
    context = board_context(request, listed, objective_id, HERE, manages=manages)
    context |= listed_context(request, listed, HERE)
    with timezone.override(context["range"].zone):
        return render(request, "console/slo.html", context)


@console_page
@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    actor = require(request, Action.CREATE, Object.OBJECTIVE)
    form = ObjectiveForm(posted(request), releases=releases(), models=asked_models(None, now=timezone.now()))
    if request.method == "POST" and form.is_valid():
        made = tried(form, lambda: create_objective(actor=actor, **form.values()), fields=SERVICE_FIELDS)
        if made is not None:
            messages.success(request, _("The objective is made. Its window is counted within seconds."))
            return leave(request, HERE.url("objective", made.pk))
    return _form(request, form, title=_("New objective"), action=HERE.url("new"), back=HERE.url())


@console_page
@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, objective_id: UUID) -> HttpResponse:
    actor = require(request, Action.CHANGE, Object.OBJECTIVE)
    objective = _objective(objective_id)
    form = ObjectiveForm(
        posted(request),
        releases=_releases_with(objective),
        models=asked_models(objective.tenant, now=timezone.now()),
        changing=True,
        initial=initial_of(objective),
    )
    made = None
    if request.method == "POST" and form.is_valid():
        values = {**form.values(), "now": timezone.now()}
        made = tried(form, lambda: change_objective(objective.pk, actor=actor, **values), fields=SERVICE_FIELDS)
    if made is not None:
        messages.success(request, _("The objective is changed."))
        return leave(request, HERE.url("objective", objective.pk))
    action, back = HERE.url("edit", objective.pk), HERE.url("objective", objective.pk)
    return _form(request, form, title=_("Change the objective"), action=action, back=back, changing=True)


@console_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, objective_id: UUID) -> HttpResponse:
    actor = require(request, Action.DELETE, Object.OBJECTIVE)
    objective = _objective(objective_id)
    if request.method == "POST":
        delete_objective(objective.pk, actor=actor, now=timezone.now())
        messages.success(request, _("The objective %(name)s is deleted.") % {"name": objective.name})
        return leave(request, HERE.url())
    return sheet(request, "slo/_delete.html", delete_context(objective, HERE))


@console_page
@require_http_methods(["POST"])
def tiers(request: HttpRequest) -> HttpResponse:
    """Make what every SLA tier promises."""
    try:
        made = create_tier_objectives(actor=require(request, Action.CREATE, Object.OBJECTIVE))
    except Conflict as error:
        messages.error(request, said(error.message))
        return leave(request, HERE.url())
    text = ngettext("%(n)s objective is made.", "%(n)s objectives are made.", len(made)) % {"n": len(made)}
    messages.success(request, text if made else _("They are all there already."))
    return leave(request, HERE.url())


@console_page
@require_http_methods(["GET", "POST"])
def silence(request: HttpRequest, objective_id: UUID | None = None) -> HttpResponse:
    """Tell of nothing for a while: of one objective, or of all of the platform's."""
    actor = require(request, Action.CHANGE, Object.OBJECTIVE)
    objective = None if objective_id is None else _objective(objective_id)
    form, now = SilenceForm(posted(request)), timezone.now()
    owner = objective.tenant if objective is not None and objective.tenants_own else None
    if request.method == "POST" and form.is_valid():
        made = tried(
            form,
            lambda: create_silence(
                objective=objective,
                tenant=owner,
                ends_at=now + form.length,
                reason=form.cleaned_data["reason"],
                actor=actor,
                now=now,
            ),
        )
        if made is not None:
            messages.success(request, _("Nobody is told until then. Alerts still open and are shown here."))
            return leave(request, HERE.url() if objective is None else HERE.url("objective", objective.pk))
    return sheet(request, "slo/_silence.html", silence_context(form, objective, HERE), status=_status(request))


@console_page
@require_http_methods(["POST"])
def unsilence(request: HttpRequest, silence_id: UUID) -> HttpResponse:
    actor = require(request, Action.CHANGE, Object.OBJECTIVE)
    try:
        ended = end_silence(silence_id, actor=actor, now=timezone.now())
        messages.success(request, _("The silence is over: what still burns is told of now."))
    except Silence.DoesNotExist as error:
        raise Http404 from error
    except Conflict as error:
        messages.error(request, said(error.message))
        return leave(request, HERE.url())
    return leave(request, HERE.url() if ended.objective_id is None else HERE.url("objective", ended.objective_id))


@console_page
@require_http_methods(["POST"])
def acknowledge(request: HttpRequest, alert_id: UUID) -> HttpResponse:
    actor = require(request, Action.CHANGE, Object.OBJECTIVE)
    alert = ObjectiveAlert.objects.filter(pk=alert_id).first()
    if alert is None:
        raise Http404
    try:
        acknowledge_alert(alert.pk, actor=actor, now=timezone.now())
        messages.success(request, _("The alert is yours: it is not told again, and ends when the burning does."))
    except Conflict as error:
        messages.error(request, said(error.message))
    return leave(request, HERE.url("objective", alert.objective_id))


def _objective(objective_id: UUID) -> Objective:
    found = list_objectives().filter(pk=objective_id).first()
    if found is None:
        raise Http404
    return found


def initial_of(objective: Objective) -> dict[str, Any]:
    """What the form shows of an objective."""
    return {
        "name": objective.name,
        "kind": objective.kind,
        "threshold_seconds": objective.threshold_seconds,
        "target_percent": round(objective.target * 100, 6),
        "window_days": objective.window_days,
        "model": objective.model,
        "version_id": str(objective.version_id or ""),
        "tier": objective.tier,
        "enabled": objective.enabled,
    }


def delete_context(objective: Objective, place: Place) -> dict[str, Any]:
    return {
        "objective": objective,
        "title": _("Delete the objective"),
        "action": place.url("delete", objective.pk),
        "back": place.url("objective", objective.pk),
    }


def silence_context(form: SilenceForm, objective: Objective | None, place: Place) -> dict[str, Any]:
    return {
        "form": form,
        "objective": objective,
        "title": _("Silence alerts"),
        "tenant": place.tenant,
        "action": place.url("silence-all") if objective is None else place.url("silence", objective.pk),
        "back": place.url() if objective is None else place.url("objective", objective.pk),
    }


def _releases_with(objective: Objective) -> list[tuple[str, str]]:
    found = releases()
    if objective.version_id is not None and str(objective.version_id) not in dict(found):
        name = versions_of([objective.version_id]).get(objective.version_id, str(objective.version_id))
        found.insert(0, (str(objective.version_id), name))
    return found


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200


def _form(
    request: HttpRequest, form: ObjectiveForm, *, title: str, action: str, back: str, changing: bool = False
) -> HttpResponse:
    context = {"form": form, "title": title, "action": action, "back": back, "changing": changing}
    return sheet(request, "slo/_form.html", context, status=_status(request))

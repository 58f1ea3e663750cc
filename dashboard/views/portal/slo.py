"""Portal: the tenant's objectives: what the platform promises it, and what it set up for itself."""

from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.access import PortalAccess, portal_page
from dashboard.filters import page_number, search_text
from dashboard.reads.slo_list import read_listed_of
from dashboard.refusals import said, tried
from dashboard.sheets import leave, posted, sheet
from dashboard.slo_forms import SERVICE_FIELDS, ObjectiveForm, SilenceForm
from dashboard.slo_pages import Place, board_context
from dashboard.views.console.slo import delete_context, initial_of, silence_context
from gateway.models import Objective
from gateway.reads.slo import asked_models, list_alerts, list_objectives, list_silences
from gateway.services.objective_alerts import acknowledge_alert, create_silence, end_silence
from gateway.services.objectives import change_objective, create_objective, delete_objective
from tenants.actor import Actor, user_actor
from tenants.policies.roles import Action, Object
from tenants.services.errors import Conflict


@portal_page
def page(request: HttpRequest, access: PortalAccess, objective_id: UUID | None = None) -> HttpResponse:
    access.require(Action.VIEW, Object.OBJECTIVE)
    place, manages = Place(access.tenant), access.may(Action.CHANGE, Object.OBJECTIVE)
    listed = read_listed_of(
        access.tenant, words=search_text(request), chosen_id=objective_id, page=page_number(request)
    )
    context = board_context(request, listed, objective_id, place, manages=manages)
    with timezone.override(context["range"].zone):
        return render(request, "portal/slo.html", {**context, "access": access})


@portal_page
@require_http_methods(["GET", "POST"])
def new(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    actor, place = _actor(access, Action.CREATE), Place(access.tenant)
    models = asked_models(access.tenant, now=timezone.now())
    form = ObjectiveForm(posted(request), releases=[], models=models, of_tenant=True)
    if request.method == "POST" and form.is_valid():
        values = {**form.values(), "tenant": access.tenant, "tenants_own": True}
        made = tried(form, lambda: create_objective(actor=actor, **values), fields=SERVICE_FIELDS)
        if made is not None:
            messages.success(request, _("The objective is made. Its window is counted within seconds."))
            return leave(request, place.url("objective", made.pk))
    return _form(request, access, form, title=_("New objective"), action=place.url("new"), back=place.url())


@portal_page
@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, access: PortalAccess, objective_id: UUID) -> HttpResponse:
    actor, place = _actor(access, Action.CHANGE), Place(access.tenant)
    objective = _own(access, objective_id)
    form = ObjectiveForm(
        posted(request),
        releases=[],
        models=asked_models(access.tenant, now=timezone.now()),
        of_tenant=True,
        changing=True,
        initial=initial_of(objective),
    )
    made = None
    if request.method == "POST" and form.is_valid():
        values = {**form.values(), "now": timezone.now()}
        made = tried(form, lambda: change_objective(objective.pk, actor=actor, **values), fields=SERVICE_FIELDS)
    if made is not None:
        messages.success(request, _("The objective is changed."))
        return leave(request, place.url("objective", objective.pk))
    action, back = place.url("edit", objective.pk), place.url("objective", objective.pk)
    return _form(request, access, form, title=_("Change the objective"), action=action, back=back, changing=True)


@portal_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, access: PortalAccess, objective_id: UUID) -> HttpResponse:
    actor, place = _actor(access, Action.DELETE), Place(access.tenant)
    objective = _own(access, objective_id)
    if request.method == "POST":
        delete_objective(objective.pk, actor=actor, now=timezone.now())
        messages.success(request, _("The objective %(name)s is deleted.") % {"name": objective.name})
        return leave(request, place.url())
    return sheet(request, "slo/_delete.html", {**delete_context(objective, place), "access": access})


@portal_page
@require_http_methods(["GET", "POST"])
def silence(request: HttpRequest, access: PortalAccess, objective_id: UUID | None = None) -> HttpResponse:
    """Tell of nothing for a while: of one of the tenant's own objectives, or of all of them."""
    actor, place = _actor(access, Action.CHANGE), Place(access.tenant)
    objective = None if objective_id is None else _own(access, objective_id)
    form, now = SilenceForm(posted(request)), timezone.now()
    if request.method == "POST" and form.is_valid():
        made = tried(
            form,
            lambda: create_silence(
                objective=objective,
                tenant=access.tenant,
                ends_at=now + form.length,
                reason=form.cleaned_data["reason"],
                actor=actor,
                now=now,
            ),
        )
        if made is not None:
            messages.success(request, _("Nobody is told until then. Alerts still open and are shown here."))
            return leave(request, place.url() if objective is None else place.url("objective", objective.pk))
    context = {**silence_context(form, objective, place), "access": access}
    return sheet(request, "slo/_silence.html", context, status=_status(request))


@portal_page
@require_http_methods(["POST"])
def unsilence(request: HttpRequest, access: PortalAccess, silence_id: UUID) -> HttpResponse:
    actor, place = _actor(access, Action.CHANGE), Place(access.tenant)
    found = list_silences(access.tenant).filter(pk=silence_id).first()
    if found is None:
        raise Http404
    try:
        end_silence(found.pk, actor=actor, now=timezone.now())
        messages.success(request, _("The silence is over: what still burns is told of now."))
    except Conflict as error:
        messages.error(request, said(error.message))
    return leave(request, place.url() if found.objective_id is None else place.url("objective", found.objective_id))


@portal_page
@require_http_methods(["POST"])
def acknowledge(request: HttpRequest, access: PortalAccess, alert_id: UUID) -> HttpResponse:
    actor, place = _actor(access, Action.CHANGE), Place(access.tenant)
    alert = list_alerts(access.tenant).filter(pk=alert_id, objective__tenants_own=True).first()
    if alert is None:
        raise Http404
    try:
        acknowledge_alert(alert.pk, actor=actor, now=timezone.now())
        messages.success(request, _("The alert is yours: it is not told again, and ends when the burning does."))
    except Conflict as error:
        messages.error(request, said(error.message))
    return leave(request, place.url("objective", alert.objective_id))


def _actor(access: PortalAccess, action: Action) -> Actor:
    access.require(action, Object.OBJECTIVE)
    return user_actor(access.user.pk)


def _own(access: PortalAccess, objective_id: UUID) -> Objective:
    """One that the tenant set up itself; what the platform promises it is not its to change."""
    found = list_objectives(access.tenant).filter(pk=objective_id, tenants_own=True).first()
    if found is None:
        raise Http404
    return found


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200


def _form(
    request: HttpRequest,
    access: PortalAccess,
    form: ObjectiveForm,
    *,
    title: str,
    action: str,
    back: str,
    changing: bool = False,
) -> HttpResponse:
    context = {"form": form, "title": title, "action": action, "back": back, "changing": changing, "access": access}
    return sheet(request, "slo/_form.html", context, status=_status(request))

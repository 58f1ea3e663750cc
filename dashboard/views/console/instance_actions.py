"""Console: what can be done with an instance. Each asks first, saying exactly what will happen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page, signed_in
from dashboard.refusals import said
from dashboard.sheets import leave, sheet
from gpupool import selectors, services
from gpupool.engines.base import why_not_asleep
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import Instance, InstanceDesire, InstanceState
from gpupool.policies.instance import COMING_OR_UP, State
from tenants.actor import Actor, user_actor
from tenants.services import InvalidInput


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done."""

    name: str
    label: str | Promise
    icon: str
    done: str | Promise  # what is said after, with %(model)s
    act: Callable[[UUID, Actor], Instance]
    danger: bool = False


def _stop(instance_id: UUID, actor: Actor) -> Instance:
    return services.stop_instance(instance_id, actor=actor, reason="Stopped on the console.")


def _sleep(instance_id: UUID, actor: Actor) -> Instance:
    return services.sleep_instance(instance_id, actor=actor, reason="Put to sleep on the console.")


def _stage(instance_id: UUID, actor: Actor) -> Instance:
    return services.sleep_instance(instance_id, actor=actor, reason="Staged on the console.", staged=True)


def _wake(instance_id: UUID, actor: Actor) -> Instance:
    return services.wake_instance(instance_id, actor=actor, reason="Woken on the console.")


def _release(instance_id: UUID, actor: Actor) -> Instance:
    return services.release_instance(instance_id, actor=actor, reason="Released on the console.")


_SAID: Final = {
    "wake": gettext_lazy("The instance of %(model)s shall run again."),
    "sleep": gettext_lazy("The instance of %(model)s goes to sleep."),
    "stage": gettext_lazy("The instance of %(model)s is being staged."),
    "release": gettext_lazy("The instance of %(model)s is released."),
    "stop": gettext_lazy("The instance of %(model)s is stopping."),
}
VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb("wake", gettext_lazy("Wake"), "sun", _SAID["wake"], _wake),
        Verb("sleep", gettext_lazy("Sleep"), "moon", _SAID["sleep"], _sleep),
        Verb("stage", gettext_lazy("Stage"), "moon", _SAID["stage"], _stage),
        Verb("release", gettext_lazy("Release"), "logout", _SAID["release"], _release),
        Verb("stop", gettext_lazy("Stop"), "x", _SAID["stop"], _stop, danger=True),
    )
}


def possible(instance: Instance) -> list[Verb]:
    """What makes sense of it now; services have the last word."""
    if instance.desire == InstanceDesire.STOPPED or instance.state == InstanceState.STOPPED:
        return []
    names = []
    if instance.desire == InstanceDesire.ASLEEP:
        names.append("wake")
    elif not instance.attached and instance.node_id is not None and State(instance.state) in COMING_OR_UP:
        names.append("sleep" if not why_awake(instance) else "stage")
        if instance.pooled and instance.tenant_id is not None:
            names[-1] = "release"
    return [VERBS[name] for name in (*names, "stop")]


def why_awake(instance: Instance) -> str:
    """Why its engine cannot sleep while it runs, as a sentence; empty where it can."""
    try:
        return why_not_asleep(get_engine(instance.engine), instance.version.engine_args)
    except UnknownEngine as error:
        return str(error)


@console_page
@require_http_methods(["GET", "POST"])
def act(request: HttpRequest, instance_id: UUID, verb: str) -> HttpResponse:
    """Asks first; then does it, and goes back to where it was asked for."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    chosen = VERBS.get(verb)
    try:
        instance = selectors.list_instances().get(pk=instance_id)
    except Instance.DoesNotExist as error:
        raise Http404 from error
    if chosen is None:
        raise Http404
    if instance.state == InstanceState.STOPPED and (request.method == "GET" or verb == "stop"):
        messages.error(request, said("It was stopped. Start another in its place."))  # meanwhile, or by another tab
        return leave(request, "console-instance", instance.pk)
    if request.method == "POST":
        try:
            chosen.act(instance.pk, user_actor(user.pk))
        except InvalidInput as error:
            messages.error(request, said(error.message))
        else:
            messages.success(request, str(chosen.done) % {"model": instance.version.model.name})
        return leave(request, "console-instance", instance.pk)
    return sheet(
        request,
        f"console/_instance_{verb}.html",
        {
            "instance": instance,
            "verb": chosen,
            "why_awake": why_awake(instance),
            "model": instance.version.model.name,
            "title": _("Instances"),
            "back": reverse("console-instance", args=[instance.pk]),
        },
    )

"""Console: taking an engine that already runs into the pool, by its address."""

from typing import Final

from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page, signed_in
from dashboard.forms import AttachForm
from dashboard.refusals import add_refusal
from dashboard.sheets import posted, sheet
from gpupool import services
from gpupool.controller.prober import probe
from gpupool.controller.targets import target_of
from gpupool.selectors import list_engines
from tenants.actor import user_actor
from tenants.services import InvalidInput

_FIELDS: Final = {"name": "model"}
"""Fields that services call otherwise than the form."""


@console_page
@require_http_methods(["GET", "POST"])
def attach(request: HttpRequest) -> HttpResponse:
    """The form, and the answer with what the engine said when it was asked at once."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    frame = {"title": _("Instances"), "back": reverse("console-instances")}
    choices = [(engine.name, engine.title) for engine in list_engines() if engine.enabled]
    form = AttachForm(posted(request), engines=choices)
    if request.method != "POST" or not form.is_valid():
        status = 422 if request.method == "POST" else 200
        return sheet(request, "console/_attach_form.html", {**frame, "form": form}, status=status)
    values = form.cleaned_data
    try:
        attached = services.attach_engine(
            values["url"],
            engine=values["engine"],
            model_name=values["model"],
            served_name=values["served_name"],
            credential_variable=values["credential_variable"],
            slots=values["slots"],
            actor=user_actor(user.pk),
        )
    except InvalidInput as error:
        add_refusal(form, error, fields=_FIELDS)
        return sheet(request, "console/_attach_form.html", {**frame, "form": form}, status=422)
    instance = attached.instance
    verdict = async_to_sync(probe)(target_of(instance))
    if verdict.answered:
        services.set_probed_state(instance.pk, healthy=True, reason=verdict.reason, actor=user_actor(user.pk))
    context = {**frame, "instance": instance, "created": attached.created, "verdict": verdict, "url": values["url"]}
    return sheet(request, "console/_attached.html", context)

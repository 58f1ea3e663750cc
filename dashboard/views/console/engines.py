"""Console: what each engine can do, its switch, and the plugins that could not be loaded."""

from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.reads.engines import StreamDelay, stream_delays
from dashboard.sheets import sheet
from gpupool import services
from gpupool.engines.registry import broken_plugins
from gpupool.selectors import EngineOverview, list_engines, list_models_served_by_alone
from tenants.actor import user_actor


@dataclass(frozen=True, slots=True)
class Row:
    """An engine, and for each column of the matrix whether it can do that."""

    engine: EngineOverview
    marks: tuple[bool, ...]
    delay: StreamDelay | None = None


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    engines = list_engines()
    delays = stream_delays(timezone.now())
    present = {capability for engine in engines for capability in engine.capabilities}
    own = sorted(present - set(labels.CAPABILITIES))  # of plugins
    columns = [*(capability for capability in labels.CAPABILITIES if capability in present), *own]
    return render(
        request,
        "console/engines.html",
        {
            "rows": [
                Row(engine, tuple(column in engine.capabilities for column in columns), delays.get(engine.name))
                for engine in engines
            ],
            "columns": [labels.word("capability", column) for column in columns],
            "meanings": [
                (labels.word("capability", column), labels.CAPABILITY_MEANINGS[column])
                for column in columns
                if column in labels.CAPABILITY_MEANINGS
            ],
            "broken": broken_plugins(),
            "may_operate": signed_in(request).may_operate,
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def switch(request: HttpRequest, name: str, to: str) -> HttpResponse:
    """Asks first, saying what will happen; then switches the engine `to` on or off."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    engine = next((engine for engine in list_engines() if engine.name == name), None)
    if engine is None or to not in ("on", "off"):
        raise Http404
    if request.method == "POST":
        services.set_engine_enabled(name, to == "on", actor=user_actor(user.pk))
        said = _("%(engine)s is switched on.") if to == "on" else _("%(engine)s is switched off.")
        messages.success(request, said % {"engine": engine.title})
        return redirect("console-engines")
    return sheet(
        request,
        "console/_engine_switch.html",
        {
            "engine": engine,
            "to": to,
            "unserved": list_models_served_by_alone(name) if to == "off" and engine.enabled else [],
            "title": _("Engines"),
            "back": reverse("console-engines"),
        },
    )

"""Console: all instances, filtered by the address, and the button that stops one."""

from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard import labels, selectors
from dashboard.access import console_page, signed_in
from dashboard.filters import search_text
from dashboard.frames import instance_rows
from dashboard.sheets import sheet
from gpupool import services
from gpupool.models import Instance
from tenants.actor import user_actor

PAGE_SIZE = 100


@console_page
def index(request: HttpRequest) -> HttpResponse:
    state = request.GET.get("state", "")
    search = search_text(request)
    if state not in labels.INSTANCE_STATES:
        state = ""
    instances = selectors.list_instances(state=state, search=search, include_stopped=bool(state or search))
    found = Paginator(instances, PAGE_SIZE).get_page(request.GET.get("page"))
    counts = selectors.count_instances()
    return render(
        request,
        "console/instances.html",
        {
            "rows": instance_rows(found),
            "found": found,
            "now": timezone.now(),
            "zone": str(timezone.get_current_timezone()),
            "state": state,
            "search": search,
            "states": [(value, labels.word("instance", value), counts[value]) for value in labels.INSTANCE_STATES],
            "filtered": bool(state or search),
            "may_operate": signed_in(request).may_operate,
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def stop(request: HttpRequest, instance_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then stops, or detaches what was attached."""
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    try:
        instance = selectors.list_instances(include_stopped=True).get(pk=instance_id)
    except Instance.DoesNotExist as error:
        raise Http404 from error
    if request.method == "POST":
        services.stop_instance(instance.pk, actor=user_actor(user.pk), reason="Stopped on the console.")
        messages.success(request, _("The instance of %(model)s is stopping.") % {"model": instance.version.model.name})
        return redirect("console-instances")
    return sheet(
        request,
        "console/_instance_stop.html",
        {"instance": instance, "title": _("Instances"), "back": reverse("console-instances")},
    )

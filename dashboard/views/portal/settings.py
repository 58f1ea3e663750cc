"""Portal: how long things are kept, where the tenant's days begin, and where its notices are posted."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.access import PortalAccess, portal_page
from dashboard.portal_forms import RetentionForm, ZoneForm
from dashboard.ranges import zone_names
from dashboard.refusals import add_refusal
from dashboard.views.portal.webhooks import keeper_of
from dashboard.webhook_pages import card_context
from tenants.actor import user_actor
from tenants.models import Tenant
from tenants.policies.quota import CALENDAR
from tenants.policies.roles import Action, Object
from tenants.services import InvalidInput
from tenants.services.departments import change_tenant

_RETENTION = ("response_retention_days", "conversation_retention_days")


@portal_page
@require_http_methods(["GET", "POST"])
def page(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """Two forms, told apart by `what`: each saves its own alone."""
    tenant = access.tenant
    what = request.POST.get("what", "")
    retention = RetentionForm(
        request.POST if what == "retention" else None, initial={name: getattr(tenant, name) for name in _RETENTION}
    )
    zone = ZoneForm(request.POST if what == "zone" else None, initial={"time_zone": tenant.time_zone})
    status = 200
    if request.method == "POST":
        access.require(Action.CHANGE, Object.TENANT)
        forms: dict[str, RetentionForm | ZoneForm] = {"retention": retention, "zone": zone}
        form = forms.get(what)
        if form is None:
            raise PermissionDenied
        if form.is_valid() and _saved(access, form):
            messages.success(request, _("Saved. It is in force within a second."))
            return redirect("portal-settings", tenant.slug)
        status = 422
    return render(request, "portal/settings.html", _context(access, retention, zone), status=status)


def _context(access: PortalAccess, retention: RetentionForm, zone: ZoneForm) -> dict[str, Any]:
    return {
        "access": access,
        "retention": retention,
        "zone": zone,
        "zones": sorted(zone_names()),
        "zone_held": _zone_is_held(access),
        "may_change": access.may(Action.CHANGE, Object.TENANT),
        **card_context(keeper_of(access)),
    }


def _saved(access: PortalAccess, form: RetentionForm | ZoneForm) -> bool:
    if (
        isinstance(form, ZoneForm)
        and form.cleaned_data["time_zone"] != access.tenant.time_zone
        and _zone_is_held(access)
    ):
        form.add_error("time_zone", _("This tenant has budgets, whose days and months would change: ask an operator."))
        return False
    try:
        change_tenant(access.tenant.pk, actor=user_actor(access.user.pk), **form.cleaned_data)
    except InvalidInput as error:
        add_refusal(form, error)
        return False
    return True


def _zone_is_held(access: PortalAccess) -> bool:
    """Whether its zone is the operators' to change, because budgets by the calendar follow it."""
    tenant: Tenant = access.tenant
    return not access.user.may_operate and tenant.limits.filter(window__in=CALENDAR).exists()

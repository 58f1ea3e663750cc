"""Portal: webhooks. A secret is in one answer and nowhere after."""

from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.access import PortalAccess, portal_page
from dashboard.portal_forms import WebhookForm
from dashboard.refusals import add_refusal, said
from dashboard.sheets import sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.actor import user_actor
from tenants.models import Webhook
from tenants.policies.deliveries import DeliveryState
from tenants.policies.roles import Action, Object
from tenants.reads.notices import get_webhook, list_deliveries
from tenants.services import Conflict, InvalidInput
from tenants.services.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    rotate_webhook_secret,
    send_test_notice,
)

DELIVERIES: Final = Table(
    name="deliveries",
    sort="-sent",
    columns=(
        Column(key="sent", label=gettext_lazy("When"), order="pk", value=lambda row: row.created_at),
        Column(key="kind", label=gettext_lazy("Of what"), order="notice__kind", value=lambda row: row.notice.kind),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(
            key="attempts",
            label=gettext_lazy("Attempts"),
            order="attempts",
            numeric=True,
            value=lambda row: row.attempts,
        ),
        Column(key="status", label=gettext_lazy("Answer"), numeric=True, value=lambda row: row.last_status),
        Column(key="error", label=gettext_lazy("What went wrong"), value=lambda row: row.last_error),
    ),
)
_STATES: Final = {
    DeliveryState.PENDING: gettext_lazy("Under way"),
    DeliveryState.DELIVERED: gettext_lazy("Delivered"),
    DeliveryState.FAILED: gettext_lazy("Failed"),
}


def _frame(access: PortalAccess) -> dict[str, object]:
    """What a dialog's page needs around it."""
    return {"access": access, "title": _("Settings"), "back": reverse("portal-settings", args=[access.tenant.slug])}


def _webhook(access: PortalAccess, webhook_id: UUID) -> Webhook:
    try:
        return get_webhook(access.tenant, webhook_id)
    except Webhook.DoesNotExist as error:
        raise Http404 from error


@portal_page
def page(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponseBase:
    """One webhook and what was sent to it."""
    access.require(Action.VIEW, Object.WEBHOOK)
    webhook = _webhook(access, webhook_id)
    facet = Facet.read(
        request, "state", _("State"), [(state.value, word) for state, word in _STATES.items()], all_label=_("All")
    )
    rows: QuerySet[Any] = list_deliveries(webhook)
    if facet.chosen:
        rows = rows.filter(state=facet.chosen)
    if is_csv(request):
        return csv_response(DELIVERIES, request, rows)
    return render(
        request,
        "portal/webhook.html",
        {
            "access": access,
            "webhook": webhook,
            "page": read_page(DELIVERIES, request, rows),
            "filtered": Filtered(facets=[facet]),
            "may_change": access.may(Action.CHANGE, Object.WEBHOOK),
            "may_delete": access.may(Action.DELETE, Object.WEBHOOK),
        },
    )


@portal_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """The form, and the answer with the secret."""
    access.require(Action.CREATE, Object.WEBHOOK)
    form = WebhookForm(request.POST or None)
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                new = create_webhook(
                    access.tenant,
                    url=form.cleaned_data["url"],
                    events=form.cleaned_data["events"],
                    actor=user_actor(access.user.pk),
                )
            except (InvalidInput, Conflict) as error:
                add_refusal(form, error)
            else:
                context = {**_frame(access), "webhook": new.webhook, "secret": new.secret}
                return sheet(request, "portal/_webhook_secret.html", context)
        status = 422
    return sheet(request, "portal/_webhook_form.html", {**_frame(access), "form": form}, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    """Asks first; then makes another secret and shows it, once."""
    access.require(Action.CHANGE, Object.WEBHOOK)
    webhook = _webhook(access, webhook_id)
    if request.method == "POST":
        new = rotate_webhook_secret(webhook.pk, actor=user_actor(access.user.pk))
        context = {**_frame(access), "webhook": new.webhook, "secret": new.secret, "rotated": True}
        return sheet(request, "portal/_webhook_secret.html", context)
    return sheet(request, "portal/_webhook_rotate.html", {**_frame(access), "webhook": webhook})


@portal_page
@require_POST
def test(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    """Post a notice that nothing happened; what came of it is on the webhook's page."""
    access.require(Action.CHANGE, Object.WEBHOOK)
    webhook = _webhook(access, webhook_id)
    try:
        send_test_notice(webhook.pk, actor=user_actor(access.user.pk))
        messages.success(request, _("A test is under way: reload in some seconds to see what came of it."))
    except Conflict as error:
        messages.error(request, said(error.message))
    return redirect("portal-setting-webhook", access.tenant.slug, webhook.pk)


@portal_page
@require_POST
def switch(request: HttpRequest, access: PortalAccess, webhook_id: UUID, to: str) -> HttpResponse:
    """On or off; to switch it off ends what is under way."""
    access.require(Action.CHANGE, Object.WEBHOOK)
    if to not in ("on", "off"):
        raise Http404
    webhook = _webhook(access, webhook_id)
    change_webhook(webhook.pk, enabled=to == "on", actor=user_actor(access.user.pk))
    messages.success(request, _("It is on.") if to == "on" else _("It is off: what was under way is given up."))
    return redirect("portal-setting-webhook", access.tenant.slug, webhook.pk)


@portal_page
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest, access: PortalAccess, webhook_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then deletes."""
    access.require(Action.DELETE, Object.WEBHOOK)
    webhook = _webhook(access, webhook_id)
    if request.method == "POST":
        delete_webhook(webhook.pk, actor=user_actor(access.user.pk))
        messages.success(request, _("The webhook is deleted."))
        return redirect("portal-settings", access.tenant.slug)
    return sheet(request, "portal/_webhook_delete.html", {**_frame(access), "webhook": webhook})

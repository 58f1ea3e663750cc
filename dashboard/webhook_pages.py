"""Webhooks, the same in console and portal: their card on the settings page, one of them, and all that is done to it.

A secret is in one answer and nowhere after.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from dashboard import labels
from dashboard.refusals import add_refusal, said
from dashboard.request_side import Side
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.actor import Actor, user_actor
from tenants.models import User, Webhook
from tenants.models.notices import URL_LENGTH
from tenants.policies.deliveries import DeliveryState
from tenants.policies.notices import PLATFORM_KINDS, TENANT_KINDS, NoticeKind
from tenants.policies.roles import Action
from tenants.reads.notices import get_webhook, list_deliveries, list_webhooks
from tenants.services import Conflict, InvalidInput
from tenants.services.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    host_of,
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
        Column(
            key="status", label=pgettext_lazy("delivery", "Answer"), numeric=True, value=lambda row: row.last_status
        ),
        Column(key="error", label=gettext_lazy("What went wrong"), value=lambda row: row.last_error),
    ),
)
_CONSOLE_DELIVERIES: Final = replace(DELIVERIES, name="console-deliveries")
_STATES: Final = {
    DeliveryState.PENDING: gettext_lazy("Under way"),
    DeliveryState.DELIVERED: gettext_lazy("Delivered"),
    DeliveryState.FAILED: gettext_lazy("Failed"),
}


class WebhookForm(forms.Form):
    """An address that notices of some of `kinds`, or of all, are posted to."""

    use_required_attribute = True

    url = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=URL_LENGTH,
        help_text=gettext_lazy("Each notice is posted there, signed with a secret that you see once."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autofocus": True, "inputmode": "url", "spellcheck": "false"}
        ),
    )
    events = forms.MultipleChoiceField(
        label=gettext_lazy("Of what"), required=False, widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, *args: Any, kinds: Set[NoticeKind], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offered = [(kind.value, labels.NOTICES[kind.value]) for kind in NoticeKind if kind in kinds]
        self.fields["events"].choices = offered  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Keeper:
    """Whose webhooks are meant, the platform's in the console, and what the person at the page may do with them."""

    side: Side
    person: User
    may: Callable[[Action], bool]

    def require(self, action: Action) -> Actor:
        """Whom the audit log names for what follows. Raises PermissionDenied unless they may."""
        if not self.may(action):
            raise PermissionDenied
        return user_actor(self.person.pk)

    def webhook(self, webhook_id: UUID) -> Webhook:
        """Raises Http404 where there is none, also for one of somebody else's."""
        try:
            return get_webhook(self.side.tenant, webhook_id)
        except Webhook.DoesNotExist as error:
            raise Http404 from error

    @property
    def settings_url(self) -> str:
        return self.side.address("settings")

    @property
    def new_url(self) -> str:
        return self.side.address("setting-webhook-new")


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook with the addresses of its page and of what is done to it."""

    webhook: Webhook
    keeper: Keeper

    @property
    def side(self) -> Side:
        return self.keeper.side

    @property
    def shown(self) -> str:
        """Where notices are posted; its host alone for those who only look, since the rest may hold a secret."""
        return self.webhook.url if self.keeper.may(Action.CHANGE) else host_of(self.webhook.url)

    @property
    def url(self) -> str:
        return self.side.address("setting-webhook", self.webhook.pk)

    @property
    def test_url(self) -> str:
        return self.side.address("setting-webhook-test", self.webhook.pk)

    @property
    def on_url(self) -> str:
        return self.side.address("setting-webhook-switch", self.webhook.pk, "on")

    @property
    def off_url(self) -> str:
        return self.side.address("setting-webhook-switch", self.webhook.pk, "off")

    @property
    def change_url(self) -> str:
        return self.side.address("setting-webhook-change", self.webhook.pk)

    @property
    def secret_url(self) -> str:
        return self.side.address("setting-webhook-secret", self.webhook.pk)

    @property
    def delete_url(self) -> str:
        return self.side.address("setting-webhook-delete", self.webhook.pk)


def card_context(keeper: Keeper) -> dict[str, Any]:
    """What `webhooks/card.html` shows on the page of settings."""
    may_see = keeper.may(Action.VIEW)
    webhooks = list_webhooks(keeper.side.tenant) if may_see else ()
    return {
        "keeper": keeper,
        "may_see_webhooks": may_see,
        "may_make_webhooks": keeper.may(Action.CREATE),
        "webhooks": [Hook(webhook, keeper) for webhook in webhooks],
    }


def one_page(request: HttpRequest, keeper: Keeper, webhook_id: UUID) -> HttpResponseBase:
    """One webhook and what was sent to it."""
    keeper.require(Action.VIEW)
    webhook = keeper.webhook(webhook_id)
    facet = Facet.read(
        request, "state", _("State"), [(state.value, word) for state, word in _STATES.items()], all_label=_("All")
    )
    table = DELIVERIES if keeper.side.portal else _CONSOLE_DELIVERIES
    rows: QuerySet[Any] = list_deliveries(webhook)
    if facet.chosen:
        rows = rows.filter(state=facet.chosen)
    if is_csv(request):
        return csv_response(table, request, rows)
    return render(
        request,
        "webhooks/one.html",
        {
            "keeper": keeper,
            "webhook": webhook,
            "hook": Hook(webhook, keeper),
            "page": read_page(table, request, rows),
            "filtered": Filtered(facets=[facet]),
            "zone": timezone.get_current_timezone_name(),
            "may_change": keeper.may(Action.CHANGE),
            "may_delete": keeper.may(Action.DELETE),
        },
    )


def create(request: HttpRequest, keeper: Keeper) -> HttpResponse:
    """The form, and the answer with the secret."""
    actor = keeper.require(Action.CREATE)
    form = WebhookForm(posted(request), kinds=_kinds(keeper))
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                new = create_webhook(
                    keeper.side.tenant, url=form.cleaned_data["url"], events=form.cleaned_data["events"], actor=actor
                )
            except (InvalidInput, Conflict) as error:
                add_refusal(form, error)
            else:
                context = {**_frame(keeper, new.webhook), "secret": new.secret}
                return sheet(request, "webhooks/_secret.html", context)
        status = 422
    return sheet(request, "webhooks/_form.html", {**_frame(keeper), "form": form}, status=status)


def change(request: HttpRequest, keeper: Keeper, webhook_id: UUID) -> HttpResponse:
    """Another address, other events; its secret and the log of its deliveries stay."""
    actor = keeper.require(Action.CHANGE)
    webhook = keeper.webhook(webhook_id)
    had = frozenset(kind for kind in NoticeKind if kind in webhook.events)  # also what new ones may not choose
    form = WebhookForm(
        posted(request), kinds=_kinds(keeper) | had, initial={"url": webhook.url, "events": webhook.events}
    )
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                change_webhook(
                    webhook.pk, url=form.cleaned_data["url"], events=form.cleaned_data["events"], actor=actor
                )
            except InvalidInput as error:
                add_refusal(form, error)
            else:
                messages.success(request, _("The webhook is changed."))
                return leave(request, Hook(webhook, keeper).url)
        status = 422
    return sheet(request, "webhooks/_form.html", {**_frame(keeper, webhook), "form": form}, status=status)


def rotate(request: HttpRequest, keeper: Keeper, webhook_id: UUID) -> HttpResponse:
    """Asks first; then makes another secret and shows it, once."""
    actor = keeper.require(Action.CHANGE)
    webhook = keeper.webhook(webhook_id)
    if request.method == "POST":
        new = rotate_webhook_secret(webhook.pk, actor=actor)
        context = {**_frame(keeper, new.webhook), "secret": new.secret, "rotated": True}
        return sheet(request, "webhooks/_secret.html", context)
    return sheet(request, "webhooks/_rotate.html", _frame(keeper, webhook))


def test(request: HttpRequest, keeper: Keeper, webhook_id: UUID) -> HttpResponse:
    """Post a notice that nothing happened; what came of it is on the webhook's page."""
    actor = keeper.require(Action.CHANGE)
    webhook = keeper.webhook(webhook_id)
    try:
        send_test_notice(webhook.pk, actor=actor)
        messages.success(request, _("A test is under way: reload in some seconds to see what came of it."))
    except Conflict as error:
        messages.error(request, said(error.message))
    return redirect(Hook(webhook, keeper).url)


def switch(request: HttpRequest, keeper: Keeper, webhook_id: UUID, to: str) -> HttpResponse:
    """On or off; to switch it off ends what is under way."""
    actor = keeper.require(Action.CHANGE)
    if to not in ("on", "off"):
        raise Http404
    webhook = keeper.webhook(webhook_id)
    change_webhook(webhook.pk, enabled=to == "on", actor=actor)
    messages.success(request, _("It is on.") if to == "on" else _("It is off: what was under way is given up."))
    return redirect(Hook(webhook, keeper).url)


def delete(request: HttpRequest, keeper: Keeper, webhook_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then deletes."""
    actor = keeper.require(Action.DELETE)
    webhook = keeper.webhook(webhook_id)
    if request.method == "POST":
        delete_webhook(webhook.pk, actor=actor)
        messages.success(request, _("The webhook is deleted."))
        return redirect(keeper.settings_url)
    return sheet(request, "webhooks/_delete.html", _frame(keeper, webhook))


def _kinds(keeper: Keeper) -> frozenset[NoticeKind]:
    return TENANT_KINDS if keeper.side.portal else PLATFORM_KINDS


def _frame(keeper: Keeper, webhook: Webhook | None = None) -> dict[str, object]:
    """What a dialog's page needs around it, and the webhook that it is about."""
    around: dict[str, object] = {"title": _("Settings"), "back": keeper.settings_url, "keeper": keeper}
    return around if webhook is None else {**around, "webhook": webhook, "hook": Hook(webhook, keeper)}

"""Portal: API keys. A secret is in the answer to its creation, or its rotation, and nowhere after."""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import selectors
from dashboard.access import PortalAccess, portal_page
from dashboard.charts.usage import RANGES, bucket_starts, sparkline
from dashboard.filters import search_text
from dashboard.forms import KeyForm, RotateForm
from dashboard.reads.key_usage import read_key_usage
from dashboard.reads.portal_limits import read_key_limits
from dashboard.refusals import add_refusal
from dashboard.sheets import sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants import services
from tenants.actor import user_actor
from tenants.models import ApiKey
from tenants.selectors import get_api_key, list_api_keys

_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
_NOT_YET: Final = datetime(1970, 1, 1, tzinfo=UTC)

TABLE: Final = Table(
    name="keys",
    sort="-made",
    columns=(
        Column(key="name", label=gettext_lazy("Key"), order="name", value=lambda key: key.name),
        Column(key="masked", value=lambda key: key.masked),
        Column(key="state", label=gettext_lazy("State"), value=lambda key: state_of(key, timezone.now())),
        Column(key="models", label=gettext_lazy("Models"), value=lambda key: " ".join(key.allowed_models)),
        Column(
            key="rpm",
            label=gettext_lazy("Requests a minute"),
            order="rate",
            numeric=True,
            value=lambda key: key.rpm_limit,
        ),
        Column(key="expires", label=gettext_lazy("Expires"), order="ends", value=lambda key: key.expires_at),
        Column(key="made", label=gettext_lazy("Made"), order="pk", value=lambda key: key.created_at),
        Column(key="made_by", value=lambda key: str(key.created_by or "")),
        Column(key="used", label=gettext_lazy("Last used"), order="used", value=lambda key: key.last_used_at),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)
SHOWN: Final = frozenset({"name", "state", "models", "rpm", "expires", "made", "used", "actions"})
"""Columns that are only in the CSV stand beneath others on the page."""

DAYS: Final = 30


def state_of(key: ApiKey, now: datetime) -> str:
    """active, expired or revoked."""
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.is_usable(now) else "expired"


def _can_rotate(key: ApiKey, now: datetime) -> bool:
    return key.is_usable(now) and key.replaced_by_id is None and not key.purpose


def _key(access: PortalAccess, key_id: UUID) -> ApiKey:
    try:
        return get_api_key(access.tenant, key_id)
    except ApiKey.DoesNotExist as error:
        raise Http404 from error


def _frame(access: PortalAccess) -> dict[str, object]:
    """What a dialog's page needs around it."""
    return {"access": access, "title": _("API keys"), "back": reverse("portal-keys", args=[access.tenant.slug])}


@portal_page
def index(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """Sorted, sought and paged by the database: the cost of a page does not grow with the number of keys before it."""
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Name or last four"),
        facets=[
            Facet.read(
                request,
                "state",
                _("State"),
                [
                    ("expired", _("Expired")),
                    ("revoked", _("Revoked")),
                    ("leaked", _("Leaked")),
                    ("all", _("All")),
                ],
                all_label=_("In use"),
            ),
            Facet.read(request, "by", _("Made by"), [("me", _("Me"))], all_label=_("Anybody")),
        ],
    )
    now = timezone.now()
    rows = _filtered(access, filtered, now)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    return render(
        request,
        "portal/keys.html",
        {
            "access": access,
            "page": page,
            "headings": [heading for heading in page.headings if heading.key in SHOWN],
            "rows": [(key, state_of(key, now), *_may(access, key, now)) for key in page.rows],
            "filtered": filtered,
        },
    )


def _filtered(access: PortalAccess, filtered: Filtered, now: datetime) -> "QuerySet[Any]":
    state, by = (facet.chosen for facet in filtered.facets)
    rows = list_api_keys(access.tenant, include_revoked=state not in ("", "expired"), search=filtered.search)
    if not state:
        rows = rows.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))
    elif state == "expired":
        rows = rows.filter(expires_at__lte=now)
    elif state == "revoked":
        rows = rows.filter(revoked_at__isnull=False)
    elif state == "leaked":
        rows = rows.filter(compromised_at__isnull=False)
    if by == "me":
        rows = rows.filter(created_by=access.user)
    return rows.annotate(
        ends=Coalesce("expires_at", Value(_NEVER)),
        used=Coalesce("last_used_at", Value(_NOT_YET)),
        rate=Coalesce("rpm_limit", Value(0)),
    )


def _may(access: PortalAccess, key: ApiKey, now: datetime) -> tuple[bool, bool]:
    """Whether the person may rotate it, and whether revoke it."""
    return access.may_rotate(key.created_by_id) and _can_rotate(key, now), access.may_revoke(key.created_by_id)


@portal_page
def one(request: HttpRequest, access: PortalAccess, key_id: UUID) -> HttpResponse:
    """One key: what it may, what it used, what holds it back, where it came from."""
    key = _key(access, key_id)
    now = timezone.now()
    zone = ZoneInfo(access.tenant.time_zone)
    starts = bucket_starts(RANGES["30d"], now=now, zone=zone)
    usage = read_key_usage(key, starts=starts, until=now)
    may_rotate, may_revoke = _may(access, key, now)
    return render(
        request,
        "portal/key.html",
        {
            "access": access,
            "key": key,
            "state": state_of(key, now),
            "may_rotate": may_rotate,
            "may_revoke": may_revoke,
            "usage": usage,
            "bars": sparkline(usage.by_day, width=600, height=64),
            "days": DAYS,
            "by_day": [(start, tokens) for start, tokens in zip(starts, usage.by_day, strict=True)],
            "limits": read_key_limits(key, now),
            "before": ApiKey.objects.filter(tenant=access.tenant, replaced_by=key).first(),
        },
    )


@portal_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """The form, and the answer with the new secret: a fragment for the dialog, else a page."""
    if not access.may_create_keys:
        raise PermissionDenied
    names = [model.name for model in selectors.list_portal_models(access.tenant)]
    form = KeyForm(request.POST or None, model_names=names)
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                new = services.create_api_key(
                    access.tenant,
                    name=form.cleaned_data["name"],
                    allowed_models=form.cleaned_data["models"],
                    rpm_limit=form.cleaned_data["rpm_limit"],
                    expires_at=form.expires_at(),
                    keep_alive=form.cleaned_data["keep_alive"],
                    actor=user_actor(access.user.pk),
                    created_by=access.user.pk,
                )
            except services.InvalidInput as error:
                add_refusal(form, error)
            else:
                return sheet(
                    request, "portal/_key_created.html", {**_frame(access), "key": new.key, "secret": new.secret}
                )
        status = 422
    return sheet(request, "portal/_key_form.html", {**_frame(access), "form": form}, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, access: PortalAccess, key_id: UUID) -> HttpResponse:
    """Asks how long the old key shall work; then makes the new one and shows its secret, once."""
    key = _key(access, key_id)
    if not access.may_rotate(key.created_by_id):
        raise PermissionDenied
    form = RotateForm(request.POST or None)
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                new = services.rotate_api_key(key.pk, overlap=form.overlap_time(), actor=user_actor(access.user.pk))
            except services.Conflict:
                form.add_error(None, _("This key works no longer, or was rotated before."))
            else:
                key.refresh_from_db()
                return sheet(
                    request,
                    "portal/_key_created.html",
                    {**_frame(access), "key": new.key, "secret": new.secret, "rotated": key},
                )
        status = 422
    return sheet(request, "portal/_key_rotate.html", {**_frame(access), "form": form, "key": key}, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def leaked(request: HttpRequest, access: PortalAccess, key_id: UUID) -> HttpResponse:
    """Asks first; then revokes the key, which is listed as compromised from then on."""
    key = _key(access, key_id)
    if not access.may_revoke(key.created_by_id):
        raise PermissionDenied
    if request.method == "POST":
        services.revoke_api_key(key.pk, actor=user_actor(access.user.pk), compromised=True)
        messages.success(request, _("The key “%(name)s” is revoked and listed as leaked.") % {"name": key.name})
        return redirect("portal-keys", access.tenant.slug)
    return sheet(request, "portal/_key_leaked.html", {**_frame(access), "key": key})


@portal_page
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, access: PortalAccess, key_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then revokes."""
    key = _key(access, key_id)
    if not access.may_revoke(key.created_by_id):
        raise PermissionDenied
    if request.method == "POST":
        services.revoke_api_key(key.pk, actor=user_actor(access.user.pk))
        messages.success(request, _("The key “%(name)s” is revoked.") % {"name": key.name})
        return redirect("portal-keys", access.tenant.slug)
    return sheet(request, "portal/_key_revoke.html", {**_frame(access), "key": key})

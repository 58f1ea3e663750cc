"""Portal: API keys. A secret is in the answer to its creation, or its rotation, and nowhere after."""

from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard import selectors
from dashboard.access import PortalAccess, portal_page
from dashboard.filters import row_before, search_text
from dashboard.forms import KeyForm, RotateForm
from dashboard.sheets import sheet
from tenants import services
from tenants.actor import user_actor
from tenants.models import ApiKey
from tenants.selectors import get_api_key, list_api_keys

PAGE_SIZE = 100


def state_of(key: ApiKey, now: datetime) -> str:
    """active, expired or revoked."""
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.is_usable(now) else "expired"


def _can_rotate(key: ApiKey, now: datetime) -> bool:
    return key.is_usable(now) and key.replaced_by_id is None


def _key(access: PortalAccess, key_id: UUID) -> ApiKey:
    try:
        return get_api_key(access.tenant, key_id)
    except ApiKey.DoesNotExist as error:
        raise Http404 from error


def _frame(access: PortalAccess) -> dict[str, object]:
    """What a dialog's page needs around it."""
    return {"access": access, "title": _("API keys"), "back": reverse("portal-keys", args=[access.tenant.slug])}


@portal_page
def index(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """Newest first, a page at a time by key: the cost of a page does not grow with the number of keys."""
    show_revoked = request.GET.get("show") == "all"
    search, before = search_text(request), row_before(request)
    keys = list_api_keys(access.tenant, include_revoked=show_revoked, search=search)
    page = list((keys.filter(pk__lt=before) if before else keys)[: PAGE_SIZE + 1])
    shown = page[:PAGE_SIZE]
    now = timezone.now()
    return render(
        request,
        "portal/keys.html",
        {
            "access": access,
            "rows": [
                (
                    key,
                    state_of(key, now),
                    access.may_rotate(key.created_by_id) and _can_rotate(key, now),
                    access.may_revoke(key.created_by_id),
                )
                for key in shown
            ],
            "show_revoked": show_revoked,
            "search": search,
            "total": keys.count(),
            "before": before,
            "older": shown[-1].pk if len(page) > PAGE_SIZE else None,
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
                form.add_error(error.field if error.field in form.fields else None, error.message)
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

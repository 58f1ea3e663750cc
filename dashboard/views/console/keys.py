"""Console: the keys of all tenants, found by the server, and the button that revokes one."""

from typing import Final
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard.access import console_page
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text, tenant_slug
from dashboard.reads.keys import KEY_STATES, find_keys, state_of
from dashboard.sheets import leave, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants import services
from tenants.models import ApiKey, Tenant
from tenants.policies.roles import Action, Object

TABLE: Final = Table(
    name="console-keys",
    sort="-created",
    columns=(
        Column(key="name", label=gettext_lazy("Key"), order="name", value=lambda row: row.name),
        Column(key="tenant", label=gettext_lazy("Tenant"), order="tenant__slug", value=lambda row: row.tenant.slug),
        Column(key="state", label=gettext_lazy("State"), value=lambda row: state_of(row, timezone.now())),
        Column(key="masked", value=lambda row: row.masked, label=gettext_lazy("Secret")),
        Column(key="created", label=pgettext_lazy("when", "Created"), order="pk", value=lambda row: row.created_at),
        Column(key="used", label=gettext_lazy("Last used"), value=lambda row: row.last_used_at),
        Column(key="expires", label=gettext_lazy("Expires"), value=lambda row: row.expires_at),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)


@console_page
def page(request: HttpRequest) -> HttpResponse:
    slug = tenant_slug(request)
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Name, start or last four, or tenant"),
        facets=[
            Facet.read(request, "state", _("State"), list(KEY_STATES.items()), all_label=_("All states")),
        ],
    )
    now = timezone.now()
    rows = find_keys(search=filtered.search, state=filtered.facets[0].chosen, tenant=slug, now=now)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    return render(
        request,
        "console/keys.html",
        {
            "page": found,
            "rows": [(key, state_of(key, now)) for key in found.rows],
            "filtered": filtered,
            "kept": [("tenant", slug)] if slug else [],
            "tenant": Tenant.objects.filter(slug=slug).first() if slug else None,
            "zone": str(timezone.get_current_timezone()),
            "may_revoke": allowed(request, Action.DELETE, Object.KEY),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, key_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then revokes."""
    actor = require(request, Action.DELETE, Object.KEY)
    key = ApiKey.objects.select_related("tenant").filter(pk=key_id).first()
    if key is None:
        raise Http404
    if request.method == "POST":
        leaked = request.POST.get("leaked") == "on"
        services.revoke_api_key(key.pk, actor=actor, compromised=leaked)
        said = (
            _("The key “%(name)s” is revoked and listed as leaked.") if leaked else _("The key “%(name)s” is revoked.")
        )
        messages.success(request, said % {"name": key.name})
        return leave(request, "console-keys")
    frame = {"title": _("Keys"), "back": reverse("console-keys"), "key": key}
    return sheet(request, "console/_key_revoke.html", frame)

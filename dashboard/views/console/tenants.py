"""Console: who shares the pool; making a tenant, suspending it, changing its tier."""

from datetime import timedelta
from typing import Final

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.console_forms import TenantForm, TierForm
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text
from dashboard.reads.tenancy import read_tenant, tenant_table
from dashboard.refusals import add_refusal
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from dashboard.viewing import may_view_as
from tenants import services
from tenants.models import ApiKey, Tenant, TenantState
from tenants.policies.roles import Action, Object
from tenants.policies.tiers import objectives_of
from tenants.reads.usage import usage_by_tenant
from tenants.services.departments import change_tenant, set_parent

TABLE: Final = Table(
    name="console-tenants",
    sort="name",
    columns=(
        Column(key="name", label=gettext_lazy("Tenant"), order="name", value=lambda row: row.name),
        Column(key="slug", label=gettext_lazy("Address"), order="slug", value=lambda row: row.slug),
        Column(key="state", label=gettext_lazy("State"), order="state", value=lambda row: row.state),
        Column(key="tier", label=gettext_lazy("Tier"), order="sla_tier", value=lambda row: row.sla_tier),
        Column(
            key="members",
            label=gettext_lazy("Members"),
            value=lambda row: row.members,
            numeric=True,
        ),
        Column(key="keys", label=gettext_lazy("Usable keys"), value=lambda row: row.keys, numeric=True),
        Column(key="requests", label=gettext_lazy("Requests, 24 h"), numeric=True),
        Column(key="tokens", label=gettext_lazy("Tokens, 24 h"), numeric=True),
        Column(key="failed", label=gettext_lazy("Failed, 24 h"), numeric=True),
        Column(
            key="created",
            label=pgettext_lazy("when", "Created"),
            order="created_at",
            value=lambda row: row.created_at,
        ),
    ),
)


@console_page
def page(request: HttpRequest) -> HttpResponse:
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Name or address"),
        facets=[
            Facet.read(request, "state", _("State"), list(labels.TENANT_STATES.items()), all_label=_("All states")),
            Facet.read(request, "tier", _("Tier"), list(labels.SLA_TIERS.items()), all_label=_("All tiers")),
        ],
    )
    state, tier = (facet.chosen for facet in filtered.facets)
    rows = tenant_table(search=filtered.search, state=state, tier=tier)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    found = read_page(TABLE, request, rows)
    now = timezone.now()
    usage = usage_by_tenant([tenant.pk for tenant in found.rows], since=now - timedelta(hours=24), until=now)
    return render(
        request,
        "console/tenants.html",
        {
            "page": found,
            "rows": [(tenant, usage.get(tenant.pk)) for tenant in found.rows],
            "filtered": filtered,
            "may_create": allowed(request, Action.CREATE, Object.NEW_TENANT),
        },
    )


@console_page
def one(request: HttpRequest, slug: str) -> HttpResponse:
    """Everything about one tenant."""
    now = timezone.now()
    try:
        told = read_tenant(slug, now=now)
    except Tenant.DoesNotExist as error:
        raise Http404 from error
    return render(
        request,
        "console/tenant.html",
        {
            "told": told,
            "tenant": told.tenant,
            "now": now,
            "zone": str(timezone.get_current_timezone()),
            "may_suspend": allowed(request, Action.CHANGE, Object.SUSPENSION),
            "may_change": allowed(request, Action.CHANGE, Object.TENANT),
            "may_limit": allowed(request, Action.CREATE, Object.LIMIT),
            "may_view_as": may_view_as(signed_in(request)),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """The form; then the new tenant's page."""
    actor = require(request, Action.CREATE, Object.NEW_TENANT)
    form = TenantForm(posted(request), initial={"time_zone": str(timezone.get_current_timezone())})
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            values = form.cleaned_data
            try:
                with transaction.atomic():  # where it cannot be put under its parent it is not made either
                    tenant = services.create_tenant(
                        slug=values["slug"],
                        name=values["name"],
                        sla_tier=values["sla_tier"],
                        time_zone=values["time_zone"],
                        actor=actor,
                    )
                    if values["parent"]:
                        set_parent(tenant.pk, values["parent"].pk, actor=actor)
            except (services.InvalidInput, services.Conflict) as error:
                add_refusal(form, error)
            else:
                messages.success(
                    request, _("%(name)s is made. Grant it models, and invite its people.") % {"name": tenant.name}
                )
                return leave(request, "console-tenant", tenant.slug)
    frame = {"title": _("Tenants"), "back": reverse("console-tenants"), "form": form}
    return sheet(request, "console/_tenant_new.html", frame, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def state(request: HttpRequest, slug: str, to: str) -> HttpResponse:
    """Asks first, saying what will happen; then suspends or resumes."""
    actor = require(request, Action.CHANGE, Object.SUSPENSION)
    tenant = _tenant(slug)
    if to not in TenantState.values:
        raise Http404
    if request.method == "POST":
        try:
            services.set_tenant_state(tenant.pk, TenantState(to), actor=actor)
        except services.Conflict:
            messages.error(request, _("This tenant is being erased: its state no longer changes."))
        else:
            said = _("%(name)s is suspended.") if to == TenantState.SUSPENDED else _("%(name)s serves again.")
            messages.success(request, said % {"name": tenant.name})
        return leave(request, "console-tenant", slug)
    now = timezone.now()
    keys = ApiKey.objects.filter(tenant=tenant, revoked_at__isnull=True).exclude(expires_at__lte=now)
    context = {**_frame(tenant), "to": to, "keys": keys.count(), "departments": tenant.children.count()}
    return sheet(request, "console/_tenant_state.html", context)


@console_page
@require_http_methods(["GET", "POST"])
def tier(request: HttpRequest, slug: str) -> HttpResponse:
    """Shows what each tier means; then changes it."""
    actor = require(request, Action.CHANGE, Object.SUSPENSION)  # the operators' to change, not the tenant's own
    tenant = _tenant(slug)
    form = TierForm(posted(request), initial={"sla_tier": tenant.sla_tier})
    if request.method == "POST" and form.is_valid():
        change_tenant(tenant.pk, sla_tier=form.cleaned_data["sla_tier"], actor=actor)
        word = labels.word("tier", form.cleaned_data["sla_tier"])
        messages.success(request, _("%(name)s is of the tier %(tier)s.") % {"name": tenant.name, "tier": word})
        return leave(request, "console-tenant", slug)
    tiers = [(value, objectives_of(value)) for value in labels.SLA_TIERS]
    context = {**_frame(tenant), "form": form, "tiers": tiers}
    return sheet(request, "console/_tenant_tier.html", context, status=422 if request.method == "POST" else 200)


def _frame(tenant: Tenant) -> dict[str, object]:
    return {"title": tenant.name, "back": reverse("console-tenant", args=[tenant.slug]), "tenant": tenant}


def _tenant(slug: str) -> Tenant:
    try:
        return Tenant.objects.get(slug=slug)
    except Tenant.DoesNotExist as error:
        raise Http404 from error

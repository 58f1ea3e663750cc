"""Console: everyone who can log in: platform roles, second factors, access tokens; and roles that claims stand for."""

from typing import Final
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import console_page, signed_in
from dashboard.console_forms import NewPersonForm, PlatformRoleForm, RoleMappingForm
from dashboard.console_rights import allowed, require
from dashboard.filters import search_text
from dashboard.refusals import add_refusal, tried
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from dashboard.viewing import may_view_as
from tenants import services
from tenants.models import AccessToken, Membership, RoleMapping, User
from tenants.policies.roles import Action, Object
from tenants.reads.people import list_role_mappings
from tenants.services.people import login_link

TABLE: Final = Table(
    name="console-people",
    sort="email",
    columns=(
        Column(key="email", label=gettext_lazy("Person"), order="email", value=lambda row: row.email),
        Column(
            key="role",
            label=gettext_lazy("Platform role"),
            order="platform_role",
            value=lambda row: row.platform_role,
        ),
        Column(key="active", label=gettext_lazy("May log in"), order="is_active", value=lambda row: row.is_active),
        Column(key="second_factor", label=gettext_lazy("Second factor"), value=lambda row: row.second_factor),
        Column(key="last_login", label=gettext_lazy("Last log-in"), value=lambda row: row.last_login),
        Column(key="joined", label=pgettext_lazy("when", "Made"), order="pk", value=lambda row: row.date_joined),
    ),
)
_MOST_MAPPINGS: Final = 200
_ROLES: Final = (
    ("any", gettext_lazy("Any platform role")),
    *labels.PLATFORM_ROLES.items(),
    ("none", gettext_lazy("Members of tenants only")),
)
_FACTORS: Final = (
    ("with", gettext_lazy("With a second factor")),
    ("without", gettext_lazy("Without one")),
    ("inactive", gettext_lazy("Deactivated")),
)


@console_page
def page(request: HttpRequest) -> HttpResponse:
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Name or address"),
        facets=[
            Facet.read(request, "role", _("Role"), _ROLES, all_label=_("Everyone")),
            Facet.read(request, "state", _("State"), _FACTORS, all_label=_("All states")),
        ],
    )
    rows = _find(filtered)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    return render(
        request,
        "console/people.html",
        {
            "page": (found := read_page(TABLE, request, rows)),
            "rows": found.rows,
            "filtered": filtered,
            "mappings": list_role_mappings()[:_MOST_MAPPINGS],
            "zone": str(timezone.get_current_timezone()),
            "may_change": allowed(request, Action.CHANGE, Object.PERSON),
        },
    )


def _find(filtered: Filtered) -> "QuerySet[User]":
    strong = Authenticator.objects.filter(user=OuterRef("pk")).exclude(type=Authenticator.Type.RECOVERY_CODES)
    rows = User.objects.annotate(second_factor=Exists(strong))
    role, state = (facet.chosen for facet in filtered.facets)
    if role == "any":
        rows = rows.exclude(platform_role="")
    elif role:
        rows = rows.filter(platform_role="" if role == "none" else role)
    if state == "inactive":
        rows = rows.filter(is_active=False)
    elif state:
        rows = rows.filter(second_factor=state == "with")
    if filtered.search:
        rows = rows.filter(Q(email__icontains=filtered.search) | Q(display_name__icontains=filtered.search))
    return rows


@console_page
def one(request: HttpRequest, user_id: UUID) -> HttpResponse:
    """A person: where they belong, how they log in, which tokens they have."""
    person = _person(user_id)
    may_see_tokens = allowed(request, Action.VIEW, Object.ACCESS_TOKEN)
    return render(
        request,
        "console/person.html",
        {
            "person": person,
            "memberships": Membership.objects.filter(user=person).select_related("tenant").order_by("tenant__slug"),
            "tokens": AccessToken.objects.filter(user=person).order_by("-pk") if may_see_tokens else None,
            "zone": str(timezone.get_current_timezone()),
            "own": person.pk == signed_in(request).pk,
            "may_view_as": person.is_active and may_view_as(signed_in(request)),
            "may_change": allowed(request, Action.CHANGE, Object.PERSON),
            "may_revoke": allowed(request, Action.DELETE, Object.ACCESS_TOKEN),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """Someone who works for the platform, and the link with which they come in, told once."""
    actor = require(request, Action.CREATE, Object.PERSON)
    form = NewPersonForm(posted(request))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                new = services.create_person(actor=actor, **form.cleaned_data)
            except services.InvalidInput as error:
                add_refusal(form, error)
            else:
                told = {**_frame(), "person": new.link.user, "link": login_link(new.secret)}
                return sheet(request, "console/_person_made.html", told)
    return sheet(request, "console/_person_new.html", {**_frame(), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def role(request: HttpRequest, user_id: UUID) -> HttpResponse:
    """Another platform role; a change ends their sessions."""
    actor = require(request, Action.CHANGE, Object.PERSON)
    person = _person(user_id)
    form = PlatformRoleForm(posted(request), initial={"platform_role": person.platform_role})
    status = 200
    if request.method == "POST":
        status = 422
        if (
            form.is_valid()
            and tried(
                form,
                lambda: services.change_person(user_id, platform_role=form.cleaned_data["platform_role"], actor=actor),
            )
            is not None
        ):
            messages.success(request, _("The role of %(name)s is changed.") % {"name": person})
            return leave(request, "console-person", user_id)
    return sheet(request, "console/_person_role.html", {**_of(person), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def activity(request: HttpRequest, user_id: UUID, to: str) -> HttpResponse:
    """Asks first; then they may log in no more, or again."""
    actor = require(request, Action.CHANGE, Object.PERSON)
    person = _person(user_id)
    if to not in ("on", "off"):
        raise Http404
    if request.method == "POST":
        try:
            services.change_person(user_id, is_active=to == "on", actor=actor)
        except services.Conflict:
            messages.error(request, _("This is the last superuser: make someone else one first."))
        else:
            said = _("%(name)s may log in again.") if to == "on" else _("%(name)s is deactivated.")
            messages.success(request, said % {"name": person})
        return leave(request, "console-person", user_id)
    return sheet(request, "console/_person_activity.html", {**_of(person), "to": to})


@console_page
@require_http_methods(["GET", "POST"])
def second_factor(request: HttpRequest, user_id: UUID) -> HttpResponse:
    """Asks first; then the factor is forgotten, sessions end, tokens are revoked."""
    actor = require(request, Action.CHANGE, Object.PERSON)
    person = _person(user_id)
    if request.method == "POST":
        services.reset_second_factor(user_id, actor=actor)
        messages.success(request, _("The second factor of %(name)s is reset.") % {"name": person})
        return leave(request, "console-person", user_id)
    tokens = AccessToken.objects.filter(user=person).count()
    return sheet(request, "console/_person_factor.html", {**_of(person), "tokens": tokens})


@console_page
@require_http_methods(["GET", "POST"])
def token(request: HttpRequest, user_id: UUID, token_id: UUID) -> HttpResponse:
    """Asks first; then the token works no more."""
    actor = require(request, Action.DELETE, Object.ACCESS_TOKEN)
    person = _person(user_id)
    found = AccessToken.objects.filter(pk=token_id, user=person).first()
    if found is None:
        raise Http404
    if request.method == "POST":
        services.delete_access_token(found.pk, actor=actor)
        messages.success(request, _("The token “%(name)s” is revoked.") % {"name": found.name})
        return leave(request, "console-person", user_id)
    return sheet(request, "console/_person_token.html", {**_of(person), "token": found})


@console_page
@require_http_methods(["GET", "POST"])
def map_role(request: HttpRequest) -> HttpResponse:
    """A role that a claim stands for, from each person's next log-in on."""
    actor = require(request, Action.CREATE, Object.PERSON)
    form = RoleMappingForm(posted(request))
    status = 200
    if request.method == "POST":
        status = 422
        if (
            form.is_valid()
            and tried(form, lambda: services.create_role_mapping(actor=actor, **form.cleaned_data)) is not None
        ):
            messages.success(request, _("The mapping counts from each person's next log-in on."))
            return leave(request, "console-people")
    return sheet(request, "console/_mapping_new.html", {**_frame(), "form": form}, status=status)


@console_page
@require_http_methods(["GET", "POST"])
def unmap_role(request: HttpRequest, mapping_id: UUID) -> HttpResponse:
    """Asks first; then what it gave is taken at each person's next log-in."""
    actor = require(request, Action.DELETE, Object.PERSON)
    mapping = RoleMapping.objects.select_related("tenant").filter(pk=mapping_id).first()
    if mapping is None:
        raise Http404
    if request.method == "POST":
        services.delete_role_mapping(mapping_id, actor=actor)
        messages.success(request, _("The mapping is gone."))
        return leave(request, "console-people")
    return sheet(request, "console/_mapping_delete.html", {**_frame(), "mapping": mapping})


def _frame() -> dict[str, object]:
    return {"title": _("People"), "back": reverse("console-people")}


def _of(person: User) -> dict[str, object]:
    return {"title": str(person), "back": reverse("console-person", args=[person.pk]), "person": person}


def _person(user_id: UUID) -> User:
    found = _find(Filtered(facets=(_ANY, _ANY))).filter(pk=user_id).first()
    if found is None:
        raise Http404
    return found


_ANY: Final = Facet(key="", label="", options=())

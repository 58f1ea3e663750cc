"""Portal: who belongs to the tenant, and who is invited. An invitation's link is in one answer and nowhere after."""

from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db.models import Q, QuerySet, TextField, Value
from django.db.models.functions import Coalesce, Lower, NullIf
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import labels
from dashboard.access import PortalAccess, portal_page
from dashboard.accounts.forms import InviteForm, RoleForm
from dashboard.filters import search_text
from dashboard.refusals import add_refusal, said
from dashboard.sheets import sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants import services
from tenants.actor import user_actor
from tenants.models import Invitation, Membership, TenantRole
from tenants.policies.roles import Action, Object
from tenants.reads import people
from tenants.services.invitations import invitation_link

INVITATIONS_SHOWN: Final = 100


def _frame(access: PortalAccess) -> dict[str, object]:
    """What a dialog's page needs around it."""
    return {"access": access, "title": _("Members"), "back": reverse("portal-members", args=[access.tenant.slug])}


def _roles(access: PortalAccess) -> list[tuple[str, str]]:
    """The roles that this person may give, the least first."""
    order = (TenantRole.VIEWER, TenantRole.BILLING, TenantRole.DEVELOPER, TenantRole.ADMIN, TenantRole.OWNER)
    return [(role.value, labels.word("role", role)) for role in order if access.standing.may_give(role)]


TABLE: Final = Table(
    name="members",
    sort="-since",
    columns=(
        Column(key="name", label=gettext_lazy("Person"), order="called", value=lambda row: str(row.user)),
        Column(key="email", value=lambda row: row.user.email),
        Column(key="role", label=gettext_lazy("Role"), order="role", value=lambda row: row.role),
        Column(key="source", label=gettext_lazy("Role given"), order="source", value=lambda row: row.source),
        Column(key="since", label=gettext_lazy("Member since"), order="pk", value=lambda row: row.created_at),
        Column(key="actions", hidden_label=gettext_lazy("Actions")),
    ),
)


@portal_page
def index(request: HttpRequest, access: PortalAccess) -> HttpResponseBase:
    """Members, and the invitations that are open."""
    facet = Facet.read(
        request, "role", _("Role"), [(role.value, labels.word("role", role)) for role in TenantRole], all_label=_("All")
    )
    filtered = Filtered(search=search_text(request), placeholder=_("Name or e-mail address"), facets=[facet])
    rows: QuerySet[Any] = people.list_members(access.tenant).annotate(
        called=Lower(Coalesce(NullIf("user__display_name", Value("")), "user__email", output_field=TextField()))
    )
    if filtered.search:
        rows = rows.filter(Q(user__display_name__icontains=filtered.search) | Q(user__email__icontains=filtered.search))
    if facet.chosen:
        rows = rows.filter(role=facet.chosen)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    page = read_page(TABLE, request, rows)
    may_change = access.may(Action.CHANGE, Object.MEMBER)
    invitations: list[Invitation] = []
    if access.may_see_invitations:
        invitations = list(people.list_invitations(access.tenant, open_only=True)[:INVITATIONS_SHOWN])
    return render(
        request,
        "portal/members.html",
        {
            "access": access,
            "page": page,
            "headings": [heading for heading in page.headings if heading.label or heading.hidden_label],
            "filtered": filtered,
            "rows": [(member, may_change and access.standing.may_give(member.role)) for member in page.rows],
            "invitations": [(one, access.may_invite and access.standing.may_give(one.role)) for one in invitations],
        },
    )


@portal_page
@require_http_methods(["GET", "POST"])
def invite(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    """The form, and the answer with the link."""
    access.require(Action.CREATE, Object.INVITATION)
    form = InviteForm(request.POST or None, roles=_roles(access))
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                new = services.create_invitation(
                    access.tenant,
                    email=form.cleaned_data["email"],
                    role=form.cleaned_data["role"],
                    days=form.cleaned_data["days"],
                    standing=access.standing,
                    actor=user_actor(access.user.pk),
                )
            except (services.InvalidInput, services.Conflict) as error:
                add_refusal(form, error)
            else:
                link = invitation_link(new.secret)
                mailed = settings.GATEHOUSE.smtp_url is not None
                context = {**_frame(access), "invitation": new.invitation, "link": link, "mailed": mailed}
                return sheet(request, "portal/_invited.html", context)
        status = 422
    return sheet(request, "portal/_invite_form.html", {**_frame(access), "form": form}, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def withdraw(request: HttpRequest, access: PortalAccess, invitation_id: UUID) -> HttpResponse:
    """Asks first; then its link stops working."""
    access.require(Action.DELETE, Object.INVITATION)
    try:
        invitation = people.get_invitation(access.tenant, invitation_id)
    except Invitation.DoesNotExist as error:
        raise Http404 from error
    if request.method == "POST":
        try:
            services.withdraw_invitation(
                access.tenant, invitation_id, standing=access.standing, actor=user_actor(access.user.pk)
            )
            messages.success(request, _("The invitation is withdrawn."))
        except services.Conflict as error:
            messages.error(request, said(error.message))
        return redirect("portal-members", access.tenant.slug)
    return sheet(request, "portal/_invitation_withdraw.html", {**_frame(access), "invitation": invitation})


@portal_page
@require_http_methods(["GET", "POST"])
def role(request: HttpRequest, access: PortalAccess, user_id: UUID) -> HttpResponse:
    """Another role for a member."""
    access.require(Action.CHANGE, Object.MEMBER)
    member = _member(access, user_id)
    form = RoleForm(request.POST or None, roles=_roles(access), initial={"role": member.role})
    status = 200
    if request.method == "POST":
        if form.is_valid():
            try:
                services.change_member_role(
                    access.tenant,
                    user_id,
                    form.cleaned_data["role"],
                    standing=access.standing,
                    actor=user_actor(access.user.pk),
                )
            except services.Conflict:
                form.add_error("role", _("This is the last owner: make someone else an owner first."))
            else:
                messages.success(request, _("%(name)s has another role now.") % {"name": member.user})
                return redirect("portal-members", access.tenant.slug)
        status = 422
    return sheet(request, "portal/_member_role.html", {**_frame(access), "form": form, "member": member}, status=status)


@portal_page
@require_http_methods(["GET", "POST"])
def remove(request: HttpRequest, access: PortalAccess, user_id: UUID) -> HttpResponse:
    """Asks first, saying what will happen; then removes."""
    access.require(Action.DELETE, Object.MEMBER)
    member = _member(access, user_id)
    if request.method == "POST":
        try:
            services.remove_member(access.tenant, user_id, standing=access.standing, actor=user_actor(access.user.pk))
            messages.success(request, _("%(name)s is no member any more.") % {"name": member.user})
        except services.Conflict:
            messages.error(request, _("This is the last owner: make someone else an owner first."))
        if user_id == access.user.pk and not access.user.may_read_platform:
            return redirect("home")
        return redirect("portal-members", access.tenant.slug)
    return sheet(request, "portal/_member_remove.html", {**_frame(access), "member": member})


def _member(access: PortalAccess, user_id: UUID) -> Membership:
    try:
        return people.get_member(access.tenant, user_id)
    except Membership.DoesNotExist as error:
        raise Http404 from error

"""Who may see which page. Pages of a tenant that one is no member of do not exist (404)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec
from zoneinfo import ZoneInfo

from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django_htmx.middleware import HtmxDetails
from psycopg.errors import LockNotAvailable, QueryCanceled

from dashboard.viewing import CLOSED, Viewing, viewing_in
from tenants import selectors
from tenants.models import Tenant, TenantState, User
from tenants.policies.roles import DEVELOPER, OPERATOR, SUPERUSER, Action, Object, Standing, may
from tenants.second_factor import lacks_second_factor

Rest = ParamSpec("Rest")


@dataclass(frozen=True, slots=True)
class PortalAccess:
    """What the person behind a request may do in one tenant.

    While an operator looks as a member, `user` and `role` are the member's, so that pages show what the member sees;
    writes are refused before any page hears of them (dashboard.viewing). A platform role of the member's is not lent.
    """

    user: User
    tenant: Tenant
    role: str | None  # None: a platform role looks in
    viewing: Viewing | None = None  # an operator looks as `user`

    @property
    def platform_role(self) -> str:
        return self.user.active_platform_role if self.viewing is None else ""

    @property
    def standing(self) -> Standing:
        return Standing(self.platform_role, self.role)

    def may(self, action: Action, on: Object) -> bool:
        """Whether they may do `action` to the tenant's `on`."""
        if self.viewing is not None and on in CLOSED:
            return False  # content is no platform role's to read, by whomever's eyes
        return may(
            action,
            on,
            platform_role=self.platform_role,
            tenant_role=self.role,
            suspended=self.tenant.state == TenantState.SUSPENDED,
        )

    def require(self, action: Action, on: Object) -> None:
        """Raises PermissionDenied unless they may."""
        if not self.may(action, on):
            raise PermissionDenied

    @property
    def may_create_keys(self) -> bool:
        return self.may(Action.CREATE, Object.KEY)

    @property
    def may_see_invitations(self) -> bool:
        return self.may(Action.VIEW, Object.INVITATION)

    @property
    def may_invite(self) -> bool:
        return self.may(Action.CREATE, Object.INVITATION)

    def may_rotate(self, created_by: object) -> bool:
        """The same people, as long as the tenant may have new keys."""
        own = Object.OWN_KEY if created_by == self.user.pk else Object.KEY
        return self.may_create_keys and self.may(Action.CHANGE, own)

    def may_withdraw(self, requested_by: object) -> bool:
        """Those who manage the tenant take back any request; a developer the ones they made, as in the control API."""
        own_alone = self.role == DEVELOPER and self.platform_role not in (OPERATOR, SUPERUSER)
        return self.may(Action.DELETE, Object.REQUEST) and (not own_alone or requested_by == self.user.pk)

    def may_revoke(self, created_by: object) -> bool:
        """Those who manage the tenant revoke any key; a developer the ones they made."""
        return self.may(Action.DELETE, Object.OWN_KEY if created_by == self.user.pk else Object.KEY)


def signed_in(request: HttpRequest) -> User:
    """The person behind a request that `_for_people` let through."""
    user: User | AnonymousUser = request.user
    if not isinstance(user, User):
        raise PermissionDenied
    return user


def people_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For everyone who is logged in."""
    return _for_people(view)


def own_security_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For everyone who is logged in, also those who have to set up a second factor before anything else."""
    return _for_people(view, settled=True)


def _for_people(view: Callable[..., HttpResponseBase], *, settled: bool = False) -> Callable[..., HttpResponseBase]:
    """For people who are logged in; kept in no cache, so that nothing stays to be seen after logging out.

    Who lacks a second factor that this installation asks for is led to where it is set up, unless `settled`.
    """

    @never_cache
    @wraps(view)
    def guarded(request: HttpRequest, /, *args: object, **kwargs: object) -> HttpResponseBase:
        response: HttpResponseBase
        if request.user.is_authenticated:
            if settled or not lacks_second_factor(signed_in(request)):
                return _in_time(request, view, *args, **kwargs)
            response = redirect("mfa_index")
        else:
            response = redirect_to_login(_asked_from(request))
        if HtmxDetails(request):  # following it would put the whole log-in page into the page's dialog
            return HttpResponse(headers={"HX-Redirect": response["Location"]})
        return response

    return guarded


def _asked_from(request: HttpRequest) -> str:
    """Where somebody is led once they are logged in: a dialog is a page of its own, any other part is not."""
    asked = HtmxDetails(request)
    part = asked.target is not None and asked.target != "dialog#sheet"
    return (asked.current_url_abs_path if part else None) or request.get_full_path()


def _in_time(
    request: HttpRequest, view: Callable[..., HttpResponseBase], *args: object, **kwargs: object
) -> HttpResponseBase:
    """The page, or one that says that the database took too long: asking for less then helps, and nothing is broken."""
    try:
        return view(request, *args, **kwargs)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled | LockNotAvailable):
            raise
    return render(request, "too_slow.html", status=503)


def console_page(
    view: Callable[Concatenate[HttpRequest, Rest], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, Rest], HttpResponseBase]:
    """For people with a platform role, whichever; others get 403."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: Rest.args, **kwargs: Rest.kwargs) -> HttpResponseBase:
        user, viewing = signed_in(request), viewing_in(request)
        if not user.may_read_platform:
            raise PermissionDenied
        if viewing is not None:
            return render(request, "viewing_refused.html", {"viewing": viewing}, status=403)
        with _others_at_work(request):
            return view(request, *args, **kwargs)

    return _for_people(guarded)


@contextmanager
def _others_at_work(request: HttpRequest) -> Iterator[None]:
    """What somebody else deletes between a page's look and its write is not there (404)."""
    try:
        yield
    except ObjectDoesNotExist as error:
        if request.method != "POST":
            raise
        raise Http404 from error


def portal_page(
    view: Callable[Concatenate[HttpRequest, PortalAccess, Rest], HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """For members of the tenant in the address and for platform roles; times are shown in the tenant's zone.

    Who looks as a member of a tenant reaches that tenant alone: the audit log of no other one says that they looked.
    """

    @wraps(view)
    def guarded(request: HttpRequest, /, slug: str, *args: Rest.args, **kwargs: Rest.kwargs) -> HttpResponseBase:
        viewing = viewing_in(request)
        user = signed_in(request) if viewing is None else viewing.member
        if viewing is not None and slug != viewing.tenant.slug:
            raise Http404
        try:
            tenant = selectors.get_tenant_for(user, slug)
        except Tenant.DoesNotExist as error:
            raise Http404 from error
        access = PortalAccess(user, tenant, selectors.get_role(user, tenant), viewing)
        request.portal = access  # type: ignore[attr-defined]  # read back by portal_of alone
        with timezone.override(ZoneInfo(tenant.time_zone)), _others_at_work(request):
            return view(request, access, *args, **kwargs)

    return _for_people(guarded)


def portal_of(request: HttpRequest) -> PortalAccess | None:
    """The access that `portal_page` found, for the shell around the page."""
    access = getattr(request, "portal", None)
    return access if isinstance(access, PortalAccess) else None

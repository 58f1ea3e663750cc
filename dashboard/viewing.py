"""Looking at the portal as one of a tenant's members does: an operator's session borrows their eyes, never their hands.

The session says whose; every request reads anew whether that may still be. While it lasts pages show what the member
sees of this one tenant (the console and other tenants are closed), and whatever would change something is refused, in
pages and in the control API alike. Stored conversations and personal data stay closed: no platform role reads those.
Reads of the control API stay the operator's own, which are no more than theirs without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib.auth.signals import user_logged_out
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from tenants.actor import user_actor
from tenants.models import Membership, Tenant, User
from tenants.policies.roles import Action, Object, may
from tenants.services.viewing import begin_viewing, end_viewing

SESSION_KEY: Final = "view_as"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ALLOWED: Final = frozenset({"/view-as/end/", "/logout/", "/language/"})
"""What may be posted meanwhile: it ends it, or changes only what this browser shows."""
_MACHINES: Final = ("/api/", "/v1/", "/v2/")
CLOSED: Final = frozenset({Object.CONVERSATION, Object.PERSONAL_DATA})


@dataclass(frozen=True, slots=True)
class Viewing:
    """Whose eyes an operator has borrowed, and until when."""

    membership: Membership  # with its user and tenant
    until: datetime

    @property
    def member(self) -> User:
        return self.membership.user

    @property
    def tenant(self) -> Tenant:
        return self.membership.tenant


def may_view_as(user: User) -> bool:
    """Whether they may borrow members' eyes: who may suspend a tenant."""
    return may(Action.CHANGE, Object.SUSPENSION, platform_role=user.active_platform_role, tenant_role=None)


def viewing_of(user: User, session: Mapping[str, Any], *, now: datetime) -> Viewing | None:
    """What a session says, if it may still be. None without any; one query at most."""
    return viewings_of({"": (user, session.get(SESSION_KEY))}, now=now).get("")


def viewings_of(told: Mapping[str, tuple[User, object]], *, now: datetime) -> dict[str, Viewing]:
    """The same of many sessions at once: by any key, whose session it is and what it says. One query at most."""
    wanted = {key: _read(said) for key, (user, said) in told.items() if said and may_view_as(user)}
    alive = {key: said for key, said in wanted.items() if said is not None and now < said[1]}
    if not alive:
        return {}
    ids = {said[0] for said in alive.values()}
    members = Membership.objects.select_related("user", "tenant").filter(pk__in=ids, user__is_active=True)
    found = {one.pk: one for one in members}
    return {key: Viewing(found[said[0]], said[1]) for key, said in alive.items() if said[0] in found}


def _read(said: object) -> tuple[UUID, datetime] | None:
    """Whose eyes, and until when; None for what makes no sense."""
    try:
        return UUID(said["membership"]), datetime.fromisoformat(said["until"])  # type: ignore[index]  # it may be no dict
    except (KeyError, TypeError, ValueError):
        return None


def viewing_in(request: HttpRequest) -> Viewing | None:
    """The viewing that this request is part of."""
    found = getattr(request, "viewing", None)
    return found if isinstance(found, Viewing) else None


def begin(request: HttpRequest, tenant: Tenant, user_id: UUID, *, operator: User) -> Viewing:
    """From the next request on. Raises Membership.DoesNotExist, Conflict."""
    membership, until = begin_viewing(tenant, user_id, actor=user_actor(operator.pk))
    request.session[SESSION_KEY] = {"membership": str(membership.pk), "until": until.isoformat()}
    return Viewing(membership, until)


def end(request: HttpRequest, *, why: str) -> Tenant | None:
    """Over, and in the audit log; returns the tenant that was looked at. Nothing without one."""
    told = request.session.pop(SESSION_KEY, None)
    if not isinstance(told, dict) or not isinstance(request.user, User):
        return None
    said = _read(told)
    membership = Membership.objects.select_related("tenant").filter(pk=said[0]).first() if said else None
    if membership is None:  # the member left meanwhile: their removal is in the log
        return None
    end_viewing(membership, actor=user_actor(request.user.pk), why=why)
    return membership.tenant


class ViewAsMiddleware(MiddlewareMixin):
    """Finds the viewing that a request is part of, and refuses what would change something."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES or SESSION_KEY not in request.session:
            return None
        user = request.user
        if not isinstance(user, User):
            return None
        viewing = viewing_of(user, request.session, now=timezone.now())
        if viewing is None:
            end(request, why="over")
        else:
            request.viewing = viewing  # type: ignore[attr-defined]  # read back by viewing_in alone
        if request.method in _READS or request.path in _ALLOWED:
            return None
        return _over(request) if viewing is None else _refusal(request, viewing)


def _refusal(request: HttpRequest, viewing: Viewing) -> HttpResponse:
    if request.path.startswith(_MACHINES):
        told = _("You are looking as %(name)s: nothing can be changed until you end it.") % {"name": viewing.member}
        return _problem("viewing_as", told)
    return render(request, "viewing_refused.html", {"viewing": viewing}, status=403)


def _over(request: HttpRequest) -> HttpResponse:
    """Once: the page that this was sent from still said that nothing can be changed."""
    if request.path.startswith(_MACHINES):
        return _problem("viewing_over", _("You no longer look as somebody else. Nothing was changed: ask again."))
    return render(request, "viewing_over.html", status=403)


def _problem(code: str, told: str) -> HttpResponse:
    problem = {"type": "about:blank", "title": "Forbidden", "status": 403, "code": code, "detail": told}
    return JsonResponse(problem, status=403, content_type="application/problem+json")


def _end_with_session(sender: object, request: HttpRequest | None, **_more: object) -> None:
    if request is not None and SESSION_KEY in request.session:
        end(request, why="logged_out")


def connect() -> None:
    """Whoever logs out ends it; called once, when Django starts."""
    user_logged_out.connect(_end_with_session, dispatch_uid="dashboard.viewing")

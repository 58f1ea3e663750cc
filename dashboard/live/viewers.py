"""Who is behind the sockets: all of a process's sessions are looked up in one batch, whatever their number."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from dashboard.live.base import Viewer, tenant_of
from dashboard.viewing import SESSION_KEY as VIEW_AS
from dashboard.viewing import viewings_of
from tenants.models import Membership, TenantState, User
from tenants.policies.second_factor import is_required

SIGNED_OUT: Final = "signed_out"
SECOND_FACTOR: Final = "second_factor"
SUSPENDED: Final = "suspended"
MEMBERSHIP: Final = "membership"
ROLE: Final = "role"


@dataclass(frozen=True, slots=True)
class Ended:
    """There is nobody (any longer) who may watch; `reason` is one of the words above."""

    reason: str


def read_viewers(session_keys: Collection[str]) -> Mapping[str, Viewer | Ended]:
    """What each session's person may do now. At most five queries; asks the rows, not what was seen at connect.

    Who looks as a member watches what that member may of the tenant in question, and nothing else.
    """
    users_of = _users_of_sessions(session_keys)
    users = {
        str(user.pk): user
        for user in User.objects.filter(pk__in={claim.user_id for claim in users_of.values()}, is_active=True)
    }
    roles, suspended = _memberships(users)
    must = [pk for pk, user in users.items() if _must_have_second_factor(user)]
    strong = Authenticator.objects.exclude(type=Authenticator.Type.RECOVERY_CODES).filter(user__in=must)
    have = {str(pk) for pk in strong.values_list("user", flat=True)} if must else set()
    viewers: dict[str, Viewer | Ended] = {}
    for key in session_keys:
        claim = users_of.get(key)
        user = users.get(claim.user_id) if claim is not None else None
        if claim is None or user is None or not _is_bound(claim.auth_hash, user):
            viewers[key] = Ended(SIGNED_OUT)
        elif claim.user_id in must and claim.user_id not in have:
            viewers[key] = Ended(SECOND_FACTOR)  # they may do nothing but set one up
        else:
            viewers[key] = Viewer(
                user_id=user.pk,
                platform_role=user.active_platform_role,
                roles=roles[claim.user_id],
                suspended=frozenset(suspended[claim.user_id]),
            )
    said = {key: (users[claim.user_id], claim.view_as) for key, claim in users_of.items() if claim.user_id in users}
    viewings = viewings_of(said, now=timezone.now())
    for key, viewing in viewings.items():
        if isinstance(viewers.get(key), Viewer):
            slug = viewing.tenant.slug
            viewers[key] = Viewer(
                user_id=viewing.member.pk,
                roles={slug: viewing.membership.role},
                suspended=frozenset([slug] if viewing.tenant.state == TenantState.SUSPENDED else []),
            )
    return viewers


def why_denied(viewer: Viewer, scope: str) -> str:
    """The word for why a feed does not let this viewer watch, for the sentence that they are told."""
    slug = tenant_of(scope)
    if slug is None or viewer.platform_role or slug in viewer.roles:
        return SUSPENDED if slug in viewer.suspended else ROLE
    return MEMBERSHIP


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a session says."""

    user_id: str
    auth_hash: str
    view_as: object = None  # see dashboard.viewing


def _users_of_sessions(session_keys: Collection[str]) -> dict[str, _Claim]:
    store = SessionStore()
    claims = {}
    rows = Session.objects.filter(session_key__in=session_keys, expire_date__gt=timezone.now())
    for key, data in rows.values_list("session_key", "session_data"):
        said = store.decode(data)
        user_id, auth_hash = said.get(SESSION_KEY), said.get(HASH_SESSION_KEY)
        if user_id and auth_hash and said.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS:
            claims[key] = _Claim(str(user_id), str(auth_hash), said.get(VIEW_AS))
    return claims


def _memberships(users: Mapping[str, User]) -> tuple[dict[str, dict[str, str]], dict[str, set[str]]]:
    roles: dict[str, dict[str, str]] = defaultdict(dict)
    suspended: dict[str, set[str]] = defaultdict(set)
    rows = Membership.objects.filter(user__in=users.values())
    for user, slug, state, role in rows.values_list("user", "tenant__slug", "tenant__state", "role"):
        roles[str(user)][slug] = role
        if state == TenantState.SUSPENDED:
            suspended[str(user)].add(slug)
    return roles, suspended


def _must_have_second_factor(user: User) -> bool:
    return is_required(settings.REQUIRE_SECOND_FACTOR_OF, platform_role=user.active_platform_role)


def _is_bound(auth_hash: str, user: User) -> bool:
    """Whether the session still stands: a changed password or ended sessions make it void."""
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(auth_hash, known) for known in hashes)

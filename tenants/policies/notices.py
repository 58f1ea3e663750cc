"""Kinds of notices, and whose they are: one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenants.policies.roles import ADMIN, BILLING, DEVELOPER, OPERATOR, OWNER, SUPERUSER


class NoticeKind(StrEnum):
    BUDGET_SHARE = "budget_share"  # a share of a calendar budget is used
    BUDGET_REFUSING = "budget_refusing"  # what running requests reserved takes the rest of it
    BUDGET_FORECAST = "budget_forecast"  # at this rate it is used up before the period ends
    KEY_EXPIRING = "key_expiring"
    KEY_COMPROMISED = "key_compromised"
    GRANT_ENDING = "grant_ending"
    BOOST_ENDING = "boost_ending"
    TENANT_SUSPENDED = "tenant_suspended"
    TENANT_RESUMED = "tenant_resumed"
    WEBHOOK_DISABLED = "webhook_disabled"
    OBJECTIVE_BURNING = "objective_burning"  # the error budget of an objective goes too fast
    OBJECTIVE_RECOVERED = "objective_recovered"
    REQUEST_OPENED = "request_opened"  # someone asks for more: told to those who decide
    REQUEST_DECIDED = "request_decided"
    TEST = "test"  # asked for, to one webhook only


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is written to: members by role, and platform people by theirs."""

    tenant_roles: frozenset[str] = frozenset()
    platform_roles: frozenset[str] = frozenset()


_MANAGERS: Final = Audience(frozenset({OWNER, ADMIN}))
_BUDGET: Final = Audience(frozenset({OWNER, ADMIN, BILLING}))

AUDIENCES: Final[Mapping[NoticeKind, Audience]] = {
    NoticeKind.BUDGET_SHARE: _BUDGET,
    NoticeKind.BUDGET_REFUSING: _BUDGET,
    NoticeKind.BUDGET_FORECAST: _BUDGET,
    NoticeKind.KEY_EXPIRING: _MANAGERS,
    NoticeKind.KEY_COMPROMISED: _MANAGERS,
    NoticeKind.GRANT_ENDING: Audience(frozenset({OWNER, ADMIN, DEVELOPER})),
    NoticeKind.BOOST_ENDING: Audience(frozenset({OWNER, ADMIN, BILLING})),
    NoticeKind.TENANT_SUSPENDED: Audience(frozenset({OWNER, ADMIN, DEVELOPER, BILLING})),
    NoticeKind.TENANT_RESUMED: Audience(frozenset({OWNER, ADMIN, DEVELOPER, BILLING})),
    NoticeKind.WEBHOOK_DISABLED: _MANAGERS,
    NoticeKind.OBJECTIVE_BURNING: Audience(frozenset({OWNER, ADMIN, DEVELOPER})),
    NoticeKind.OBJECTIVE_RECOVERED: Audience(frozenset({OWNER, ADMIN, DEVELOPER})),
    NoticeKind.REQUEST_OPENED: Audience(platform_roles=frozenset({SUPERUSER, OPERATOR})),
    NoticeKind.REQUEST_DECIDED: Audience(),  # and who asked
    NoticeKind.TEST: Audience(),
}

PLATFORM_KINDS: Final = frozenset(
    {
        NoticeKind.BUDGET_SHARE,
        NoticeKind.BUDGET_REFUSING,
        NoticeKind.BUDGET_FORECAST,
        NoticeKind.BOOST_ENDING,
        NoticeKind.WEBHOOK_DISABLED,
        NoticeKind.OBJECTIVE_BURNING,
        NoticeKind.OBJECTIVE_RECOVERED,
        NoticeKind.REQUEST_OPENED,
    }
)
"""What the platform itself is told of: its own limits, webhooks and objectives, and requests for more."""

TENANT_KINDS: Final = frozenset(kind for kind in NoticeKind if not AUDIENCES[kind].platform_roles) - {NoticeKind.TEST}
"""What a tenant is told of. A test is of either, and nobody chooses it."""

_PLATFORM: Final = frozenset({SUPERUSER, OPERATOR})


def audience_of(kind: NoticeKind, *, of_tenant: bool) -> Audience:
    """Who is written to; what concerns no tenant concerns those who operate the platform."""
    audience = AUDIENCES[kind]
    if of_tenant or not audience.tenant_roles:
        return audience
    return Audience(platform_roles=audience.platform_roles | _PLATFORM)

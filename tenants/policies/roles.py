"""What people may do: one table of roles, actions and objects. What is not in it is denied.

Machines have scopes and grants instead; see tenants.policies.rbac.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OWNER: Final = "owner"
ADMIN: Final = "admin"
DEVELOPER: Final = "developer"
VIEWER: Final = "viewer"
BILLING: Final = "billing"
SUPERUSER: Final = "superuser"
OPERATOR: Final = "operator"
READ_ONLY: Final = "read_only"

TENANT_ROLES: Final = frozenset({OWNER, ADMIN, DEVELOPER, VIEWER, BILLING})
PLATFORM_ROLES: Final = frozenset({SUPERUSER, OPERATOR, READ_ONLY})


class Action(StrEnum):
    VIEW = "view"
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


class Object(StrEnum):
    """What is acted on. First a tenant's own things, then the platform's."""

    TENANT = "tenant"  # its name, zone, retention
    MEMBER = "member"
    INVITATION = "invitation"
    KEY = "key"  # anyone's in the tenant
    OWN_KEY = "own_key"  # that one made
    GRANT = "grant"
    LIMIT = "limit"
    REQUEST = "request"  # for a model or for more
    DECISION = "decision"  # on such a request
    USAGE = "usage"
    STATEMENT = "statement"
    ADJUSTMENT = "adjustment"  # a credit or correction
    PRICE = "price"
    WEBHOOK = "webhook"
    NOTICE = "notice"
    OBJECTIVE = "objective"  # of its requests, with alerts and silences
    TENANT_AUDIT = "tenant_audit"
    JOB = "job"  # fine-tuning
    CONVERSATION = "conversation"
    PERSONAL_DATA = "personal_data"  # export and erasure
    SUSPENSION = "suspension"
    NEW_TENANT = "new_tenant"
    ISSUER = "issuer"
    PERSON = "person"
    ACCESS_TOKEN = "access_token"  # noqa: S105  # anybody's: one's own need no role
    PLATFORM_LIMIT = "platform_limit"
    PLATFORM_AUDIT = "platform_audit"
    RECONCILIATION = "reconciliation"
    CONFIGURATION = "configuration"  # rolled back by epoch
    POOL = "pool"  # models, engines, instances, nodes


_ALL: Final = frozenset({OWNER, ADMIN, DEVELOPER, VIEWER, BILLING, SUPERUSER, OPERATOR, READ_ONLY})
_PLATFORM_READS: Final = frozenset({SUPERUSER, OPERATOR, READ_ONLY})
_OPERATES: Final = frozenset({SUPERUSER, OPERATOR})
_MANAGES: Final = frozenset({OWNER, ADMIN}) | _OPERATES
_BUILDS: Final = _MANAGES | {DEVELOPER}
_MONEY: Final = frozenset({OWNER, ADMIN, BILLING}) | _PLATFORM_READS

_V, _C, _W, _D = Action.VIEW, Action.CREATE, Action.CHANGE, Action.DELETE

MAY: Final[Mapping[tuple[Object, Action], frozenset[str]]] = {
    (Object.TENANT, _V): _ALL,
    (Object.TENANT, _W): _MANAGES,
    (Object.TENANT, _D): frozenset({SUPERUSER}),
    (Object.MEMBER, _V): _ALL,
    (Object.MEMBER, _W): _MANAGES,
    (Object.MEMBER, _D): _MANAGES,
    (Object.INVITATION, _V): _MANAGES | {READ_ONLY},
    (Object.INVITATION, _C): _MANAGES,
    (Object.INVITATION, _D): _MANAGES,
    (Object.KEY, _V): _ALL,
    (Object.KEY, _C): _BUILDS,
    (Object.KEY, _W): _MANAGES,
    (Object.KEY, _D): _MANAGES,
    (Object.OWN_KEY, _W): _BUILDS,
    (Object.OWN_KEY, _D): _BUILDS,
    (Object.GRANT, _V): _ALL,
    (Object.GRANT, _C): _OPERATES,
    (Object.GRANT, _D): _OPERATES,
    (Object.LIMIT, _V): _ALL,
    (Object.LIMIT, _C): _OPERATES,
    (Object.LIMIT, _W): _OPERATES,
    (Object.LIMIT, _D): _OPERATES,
    (Object.REQUEST, _V): _ALL,
    (Object.REQUEST, _C): _BUILDS,
    (Object.REQUEST, _D): _BUILDS,
    (Object.DECISION, _C): _OPERATES,
    (Object.USAGE, _V): _ALL,
    (Object.STATEMENT, _V): _MONEY,
    (Object.ADJUSTMENT, _V): _MONEY,
    (Object.ADJUSTMENT, _C): _OPERATES,
    (Object.PRICE, _V): _ALL,
    (Object.PRICE, _C): _OPERATES,
    (Object.PRICE, _D): _OPERATES,
    (Object.WEBHOOK, _V): _MANAGES | {READ_ONLY},
    (Object.WEBHOOK, _C): _MANAGES,
    (Object.WEBHOOK, _W): _MANAGES,
    (Object.WEBHOOK, _D): _MANAGES,
    (Object.NOTICE, _V): _ALL,
    (Object.OBJECTIVE, _V): _ALL,
    (Object.OBJECTIVE, _C): _MANAGES,
    (Object.OBJECTIVE, _W): _MANAGES,
    (Object.OBJECTIVE, _D): _MANAGES,
    (Object.TENANT_AUDIT, _V): frozenset({OWNER, ADMIN}) | _PLATFORM_READS,
    (Object.JOB, _V): _ALL,
    (Object.JOB, _C): _BUILDS,
    (Object.JOB, _W): _BUILDS,
    (Object.CONVERSATION, _V): frozenset({OWNER, ADMIN}),  # content: no platform role reads it
    (Object.CONVERSATION, _D): frozenset({OWNER, ADMIN, SUPERUSER}),
    (Object.PERSONAL_DATA, _V): frozenset({OWNER, SUPERUSER}),
    (Object.PERSONAL_DATA, _D): frozenset({SUPERUSER}),
    (Object.SUSPENSION, _W): _OPERATES,
    (Object.NEW_TENANT, _C): _OPERATES,
    (Object.ISSUER, _V): _PLATFORM_READS,
    (Object.ISSUER, _C): _OPERATES,
    (Object.ISSUER, _W): _OPERATES,
    (Object.ISSUER, _D): _OPERATES,
    (Object.PERSON, _V): _PLATFORM_READS,
    (Object.PERSON, _C): frozenset({SUPERUSER}),
    (Object.PERSON, _W): frozenset({SUPERUSER}),
    (Object.PERSON, _D): frozenset({SUPERUSER}),
    (Object.ACCESS_TOKEN, _V): frozenset({SUPERUSER}),
    (Object.ACCESS_TOKEN, _D): frozenset({SUPERUSER}),
    (Object.PLATFORM_LIMIT, _V): _PLATFORM_READS,
    (Object.PLATFORM_LIMIT, _C): _OPERATES,
    (Object.PLATFORM_LIMIT, _W): _OPERATES,
    (Object.PLATFORM_LIMIT, _D): _OPERATES,
    (Object.PLATFORM_AUDIT, _V): _PLATFORM_READS,
    (Object.RECONCILIATION, _V): _PLATFORM_READS,
    (Object.CONFIGURATION, _V): _PLATFORM_READS,
    (Object.CONFIGURATION, _W): _OPERATES,
    (Object.POOL, _V): _PLATFORM_READS,
    (Object.POOL, _C): _OPERATES,
    (Object.POOL, _W): _OPERATES,
    (Object.POOL, _D): _OPERATES,
}


def may(action: Action, on: Object, *, platform_role: str, tenant_role: str | None, suspended: bool = False) -> bool:
    """Whether a person may; `tenant_role` is the one in the tenant whose thing it is, None for outsiders.

    Members of a suspended tenant look, change and take away, but create nothing; platform roles are not held up.
    Roles that are unknown allow nothing.
    """
    allowed = MAY.get((on, action), frozenset())
    if platform_role in PLATFORM_ROLES and platform_role in allowed:
        return True
    if suspended and action is Action.CREATE:
        return False
    return tenant_role in TENANT_ROLES and tenant_role in allowed


_RANKS: Final[Mapping[str, int]] = {VIEWER: 0, BILLING: 0, DEVELOPER: 1, ADMIN: 2, OWNER: 3}
_PLATFORM_RANKS: Final[Mapping[str, int]] = {READ_ONLY: 0, OPERATOR: 1, SUPERUSER: 2}


@dataclass(frozen=True, slots=True)
class Standing:
    """Someone's roles: the platform's, "" for none, and the one in the tenant in question, None for outsiders."""

    platform_role: str
    tenant_role: str | None

    def may_give(self, role: str) -> bool:
        """Whether they may give or take the tenant's `role`: none above their own; who operates, any."""
        if role not in TENANT_ROLES:
            return False
        if self.platform_role in _OPERATES:
            return True
        return self.tenant_role in (OWNER, ADMIN) and _RANKS[role] <= _RANKS[self.tenant_role]


def highest(roles: Iterable[str]) -> str | None:
    """The role of these, all of a tenant or all of the platform, that allows most; None of none.

    Viewer and billing rank alike; the name decides then, so that the answer does not hang on an order.
    """
    ranks = {**_RANKS, **_PLATFORM_RANKS}
    known = [role for role in roles if role in ranks]
    return max(known, key=lambda role: (ranks[role], role)) if known else None

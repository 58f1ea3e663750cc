"""The audit log as pages find and tell it: at millions of rows every way in here has an index."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Q, QuerySet

from dashboard.ranges import TimeRange
from tenants.models import ApiKey, AuditEvent, Tenant, User
from tenants.reads.audit import search_audit

MOST_VALUES: Final = 200
_MOST_PEOPLE: Final = 50
# A loose scan: each step looks up the next value in the index, however many rows have it.
_LOOSE: Final = """
WITH RECURSIVE found(value, n) AS (
    (SELECT {column}, 1 FROM tenants_auditevent ORDER BY {column} USING {least} LIMIT 1)
    UNION ALL
    SELECT (SELECT a.{column} FROM tenants_auditevent a WHERE a.{column} {greater} found.value
            ORDER BY a.{column} USING {least} LIMIT 1), found.n + 1
    FROM found WHERE found.value IS NOT NULL AND found.n < %s
)
SELECT value FROM found WHERE value IS NOT NULL
"""
_BY_PATTERN: Final = {"least": "~<~", "greater": "~>~"}
_BY_TEXT: Final = {"least": "<", "greater": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSearch:
    """What a page asks for; "" is no matter what. `action` is the part before the dot."""

    search: str = ""
    actor_kind: str = ""
    action: str = ""
    subject_type: str = ""
    tenant_id: UUID | None = None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list and of the live tail; `at` in seconds since the epoch."""

    id: str
    at: float
    actor: str
    actor_kind: str
    action: str
    subject: str
    subject_type: str
    tenant: str
    tenant_slug: str


def known_actions() -> list[str]:
    """Every action that was ever recorded, at most MOST_VALUES."""
    return _values("action", _BY_PATTERN)


def known_subject_types() -> list[str]:
    """The same of kinds of subjects."""
    return _values("subject_type", _BY_TEXT)


def _values(column: str, order: dict[str, str]) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_LOOSE.format(column=column, **order), [MOST_VALUES])
        return sorted(row[0] for row in cursor.fetchall())


def find_audit(asked: AuditSearch, within: TimeRange, *, actions: Iterable[str]) -> "QuerySet[AuditEvent]":
    """Rows that fit everything; not sorted yet. `actions`: those that there are, for what the words mean."""
    rows = search_audit(
        tenant_id=asked.tenant_id,
        action=f"{asked.action}." if asked.action else None,
        subject_type=asked.subject_type or None,
        since=within.since,
        until=within.until if within.name == "" else None,  # up to now: what is written meanwhile, too
    )
    if asked.actor_kind:
        rows = rows.filter(actor_kind=asked.actor_kind)
    return rows.filter(_meant(asked.search, actions)) if asked.search else rows


def _meant(words: str, actions: Iterable[str]) -> Q:
    """An id of anything, an action or its beginning, a person's or a tenant's name, or else a request's id."""
    try:
        one = UUID(words)
    except ValueError:
        pass
    else:
        return Q(pk=one) | Q(subject_id=one) | Q(actor_id=one) | Q(tenant_id=one) | Q(request_id=words)
    if any(action.startswith(words) for action in actions):
        return Q(action__startswith=words)
    people = User.objects.filter(Q(email__icontains=words) | Q(display_name__icontains=words))
    tenants = Tenant.objects.filter(Q(slug__icontains=words) | Q(name__icontains=words))
    actors = list(people.values_list("pk", flat=True)[:_MOST_PEOPLE])
    owners = list(tenants.values_list("pk", flat=True)[:_MOST_PEOPLE])
    if actors or owners:
        return Q(actor_id__in=actors) | Q(tenant_id__in=owners)
    return Q(request_id=words[:64])


def audit_rows(events: Iterable[AuditEvent], *, members_of: Tenant | None = None) -> list[AuditRow]:
    """With names of people, keys and tenants that are still there; three queries.

    `members_of`: only names of this tenant's people and things, for its own members to see.
    """
    found = list(events)
    if not found:
        return []
    asked = {one for event in found for one in (event.actor_id, event.subject_id) if one is not None}
    owners = asked | {event.tenant_id for event in found if event.tenant_id is not None}
    users, all_keys = User.objects.filter(pk__in=asked), ApiKey.objects.filter(pk__in=asked)
    all_tenants = Tenant.objects.filter(pk__in=owners)
    if members_of is not None:
        users, all_keys = users.filter(memberships__tenant=members_of), all_keys.filter(tenant=members_of)
        all_tenants = all_tenants.filter(pk=members_of.pk)
    people = {user.pk: str(user) for user in users}
    keys: dict[UUID, str] = dict(all_keys.values_list("pk", "name"))
    tenants: dict[Any, Tenant] = {one.pk: one for one in all_tenants.only("name", "slug")}
    named: dict[Any, str] = {**{pk: one.name for pk, one in tenants.items()}, **keys, **people}
    return [
        AuditRow(
            id=str(event.pk),
            at=event.at.timestamp(),
            actor=named.get(event.actor_id, "") or _short(event.actor_id),
            actor_kind=event.actor_kind,
            action=event.action,
            subject=named.get(event.subject_id, "") or _short(event.subject_id),
            subject_type=event.subject_type,
            tenant=tenants[event.tenant_id].name if event.tenant_id in tenants else _short(event.tenant_id),
            tenant_slug=tenants[event.tenant_id].slug if event.tenant_id in tenants else "",
        )
        for event in found
    ]


def _short(one: UUID | None) -> str:
    return f"{str(one)[:8]}…" if one else ""

"""Configuration brought back to how it was: limits, grants, prices, issuers, tenants' and keys' settings.

In one transaction, audited row by row, published like every other change, and itself a change that can be rolled back.
What is never brought back is said in tenants.policies.rollback.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError, connection, models, transaction
from django.db.models import Q
from django.utils import timezone
from psycopg import sql

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, AuditEvent, ConfigurationChange, Grant, Limit, Price, Tenant, TokenIssuer
from tenants.models.configuration import HISTORY_TABLES
from tenants.policies.rollback import (
    GRANT,
    ISSUER,
    KEY,
    LIMIT,
    PRICE,
    TENANT,
    Kept,
    Row,
    Step,
    plan_object,
    plan_prices,
)
from tenants.reads.audit import history_of
from tenants.services.audit import record_audit
from tenants.services.departments import DEEPEST
from tenants.services.errors import Conflict, InvalidInput

HISTORY_RETENTION: Final = timedelta(days=400)
_SECTIONS: Final = {
    KEY: Section.KEYS,
    TENANT: Section.GRANTS,
    GRANT: Section.GRANTS,
    LIMIT: Section.LIMITS,
    PRICE: Section.PRICES,
    ISSUER: Section.ISSUERS,
}
_WORDS: Final = {
    KEY: "api_key",
    TENANT: "tenant",
    GRANT: "grant",
    LIMIT: "limit",
    PRICE: "price",
    ISSUER: "token_issuer",
}
_MODELS: Final[dict[str, type[models.Model]]] = {
    KEY: ApiKey,
    TENANT: Tenant,
    GRANT: Grant,
    LIMIT: Limit,
    PRICE: Price,
    ISSUER: TokenIssuer,
}
_VERBS: Final = ("delete", "update", "insert")  # in this order what is unique never meets itself


@dataclass(frozen=True, slots=True)
class Rollback:
    """What was done, or with `dry_run` would be; and what was not, with reasons."""

    steps: Sequence[Step]
    kept: Sequence[Kept]
    dry_run: bool


@transaction.atomic
def roll_back_configuration(
    *, to: int | UUID | datetime, actor: Actor, before: bool = False, dry_run: bool = False
) -> Rollback:
    """Bring configuration back to how it was right after `to`, or with `before` right before it.

    `to` is a configuration's epoch (ConfigurationChange.id), an audit event, or a moment. The whole transaction that
    the epoch or event belongs to counts. Raises InvalidInput for one that is not known, and for moments before the
    history begins or in the future; Conflict when tenants cannot stand as they stood.
    """
    undone = _undone(to, before=before)
    now = timezone.now()
    then: dict[str, dict[str, Row | None]] = {table: {} for table in HISTORY_TABLES}
    first = undone.order_by("table", "object_id", "id").distinct("table", "object_id")
    for table, object_id, state in first.values_list("table", "object_id", "before"):
        if table in then:
            then[table][str(object_id)] = state
    plan: list[Step | Kept] = []
    for table, states in then.items():
        if table == PRICE and states:
            plan += _price_plan(states, now)
        elif states:
            rows = _rows(table, states, lock=not dry_run)
            for key, state in states.items():
                plan += plan_object(table, key, then=state, now=rows.get(key), at=now)
    steps, kept = _possible(plan)
    if not dry_run:
        kept += _apply(steps, actor)
        steps = [step for step in steps if (step.table, step.object_id) not in {(k.table, k.object_id) for k in kept}]
        record_audit(
            "configuration.rolled_back",
            subject=ConfigurationChange(),
            actor=actor,
            after={"to": str(to), "before": before, "steps": len(steps), "kept": len(kept)},
        )
    return Rollback(steps, kept, dry_run)


@transaction.atomic
def erase_history(tenant_id: UUID) -> int:
    """Forget how a tenant's configuration was; returns how many rows. For erasure, after the tenant's own rows."""
    return ConfigurationChange.objects.filter(tenant_id=tenant_id).delete()[0]


def prune_history(*, older_than: timedelta = HISTORY_RETENTION) -> int:
    """Delete history that nobody rolls back to; returns how many rows. Safe to run twice."""
    return ConfigurationChange.objects.filter(at__lt=timezone.now() - older_than).delete()[0]


def _undone(to: int | UUID | datetime, *, before: bool) -> "models.QuerySet[ConfigurationChange]":
    """The changes that came after the point."""
    history = ConfigurationChange.objects.all()
    if isinstance(to, datetime):
        return _undone_since(history, to, before=before)
    if isinstance(to, UUID):
        event = AuditEvent.objects.filter(pk=to).first()
        if event is None:
            raise InvalidInput("to", "There is no such audit event.")
        point = history_of(event).last()
        if point is None:  # it changed no configuration
            return _undone_since(history, event.at, before=before)
    else:
        point = history.filter(pk=to).first()
        if point is None:
            raise InvalidInput("to", "There is no such epoch in the configuration's history.")
    whole = Q(transaction=point.transaction, at=point.at)
    return history.filter(Q(pk__gt=point.pk) | whole) if before else history.filter(Q(pk__gt=point.pk) & ~whole)


def _undone_since(
    history: "models.QuerySet[ConfigurationChange]", moment: datetime, *, before: bool
) -> "models.QuerySet[ConfigurationChange]":
    oldest = history.order_by("id").first()
    if oldest is None or moment < oldest.at:
        begins = f"at {oldest.at.isoformat()}" if oldest else "now"
        raise InvalidInput("to", f"The configuration's history begins {begins}.")
    if moment > timezone.now():
        raise InvalidInput("to", "That moment is still to come.")
    return history.filter(at__gte=moment) if before else history.filter(at__gt=moment)


def _rows(table: str, ids: Iterable[str] | None, *, lock: bool = False) -> dict[str, Row]:
    """Rows as the history tells them, by id; of the whole table without `ids`."""
    query = sql.SQL("SELECT id::text, (to_jsonb(t) - %s::text[])::text FROM {} t").format(sql.Identifier(table))
    arguments: list[Any] = [list(HISTORY_TABLES[table])]
    if ids is not None:
        query += sql.SQL(" WHERE id = ANY(%s::uuid[])")
        arguments.append(list(ids))
    query += sql.SQL(" ORDER BY id") + sql.SQL(" FOR UPDATE" if lock else "")
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return {key: json.loads(row) for key, row in cursor.fetchall()}


def _price_plan(states: dict[str, Row | None], now: datetime) -> list[Step]:
    book = _rows(PRICE, None)
    then = {key: row for key, row in book.items() if key not in states}
    then |= {key: row for key, row in states.items() if row is not None}
    return plan_prices(then=then.values(), now=book.values(), at=now)


def _possible(plan: Iterable[Step | Kept]) -> tuple[list[Step], list[Kept]]:
    """The steps in the order to take them, without those whose tenant or key is gone."""
    plan = list(plan)
    kept = [part for part in plan if isinstance(part, Kept)]
    steps = sorted((part for part in plan if isinstance(part, Step)), key=lambda step: _VERBS.index(step.verb))
    rows = [step.after for step in steps]
    tenants = {
        str(pk)
        for pk in Tenant.objects.filter(pk__in=_named(rows, "tenant_id", "parent_id")).values_list("pk", flat=True)
    }
    keys = {str(pk) for pk in ApiKey.objects.filter(pk__in=_named(rows, "key_id")).values_list("pk", flat=True)}
    possible = []
    for step in steps:
        if _named([step.after], "tenant_id", "parent_id") - tenants:
            kept.append(Kept(step.table, step.object_id, "The tenant that it belongs to is gone."))
        elif _named([step.after], "key_id") - keys:
            kept.append(Kept(step.table, step.object_id, "The key that it belongs to is gone."))
        else:
            possible.append(step)
    return possible, kept


def _named(rows: Iterable[Row], *names: str) -> set[str]:
    return {row[name] for row in rows for name in names if row.get(name) is not None}


def _apply(steps: Sequence[Step], actor: Actor) -> list[Kept]:
    """Take the steps; returns those that the database would not take."""
    kept: list[Kept] = []
    news: set[tuple[Section, UUID]] = set()
    for step in steps:
        model = _MODELS[step.table]
        try:
            with transaction.atomic():
                subject = _take(model, step)
        except IntegrityError:
            kept.append(Kept(step.table, step.object_id, "Something made since has its place."))
            continue
        tenant_id: UUID | None = subject.pk if step.table == TENANT else getattr(subject, "tenant_id", None)
        record_audit(
            f"{_WORDS[step.table]}.rolled_back",
            subject=subject,
            actor=actor,
            tenant_id=tenant_id,
            before=step.before,
            after=step.after,
        )
        news.add((_SECTIONS[step.table], tenant_id if step.table == GRANT and tenant_id else subject.pk))
        if step.table == TENANT and step.after.keys() & {"parent_id", "time_zone"}:
            limits = Limit.objects.filter(tenant_id=subject.pk).values_list("pk", flat=True)
            news |= {(Section.LIMITS, pk) for pk in limits}
    _check_tree(step.object_id for step in steps if "parent_id" in step.after and step.table == TENANT)
    order = list(Section)
    for section, object_id in sorted(news, key=lambda item: (order.index(item[0]), item[1])):
        bump_epoch(section, object_id)
    return kept


def _take(model: type[models.Model], step: Step) -> models.Model:
    values = {
        column.attname: column.to_python(step.after[column.attname])
        for column in model._meta.concrete_fields
        if column.attname in step.after
    }
    if step.verb == "insert":
        if not step.object_id:
            values.pop("id", None)
        made = model(**values)
        made.save(force_insert=True)
        return made
    subject: models.Model = model._default_manager.get(pk=step.object_id)
    if step.verb == "delete":
        model._default_manager.filter(pk=step.object_id).delete()
    else:
        for name, value in values.items():
            setattr(subject, name, value)
        subject.save(update_fields=list(values))
    return subject


def _check_tree(tenant_ids: Iterable[str]) -> None:
    """Raises Conflict when a tenant is below itself, or too deep."""
    for tenant_id in tenant_ids:
        with connection.cursor() as cursor:
            cursor.execute(
                "WITH RECURSIVE up(id, parent_id, steps) AS ("
                "SELECT id, parent_id, 1 FROM tenants_tenant WHERE id = %s UNION ALL "
                "SELECT t.id, t.parent_id, up.steps + 1 FROM tenants_tenant t JOIN up ON t.id = up.parent_id "
                "WHERE up.steps <= %s) SELECT max(steps) FROM up",
                [tenant_id, DEEPEST],
            )
            if cursor.fetchone()[0] > DEEPEST:
                raise Conflict(f"Departments moved since are in the way: tenant {tenant_id} would lie too deep.")

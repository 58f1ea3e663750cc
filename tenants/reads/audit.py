"""Finding rows of the audit log, and of the configuration's history."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from core.ids import uuid7_from
from tenants.models import AuditEvent, ConfigurationChange

_BATCH: Final = 2000
_BEGUN_BEFORE_MS: Final = 1_000
"""How far a row's id and its time may lie apart; the time itself decides."""
SAME_TRANSACTION: Final = timedelta(hours=1)
"""Numbers of transactions may come again, years later, in another cluster."""


def search_audit(
    *,
    tenant_id: UUID | None = None,
    actor: UUID | None = None,
    action: str | None = None,
    subject_type: str | None = None,
    subject_id: UUID | None = None,
    request_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "QuerySet[AuditEvent]":
    """Rows that fit everything that is given; `action` is a prefix (`limit.`). Sort and cut it yourself.

    `since` (inclusive) and `until` (exclusive) are found by the ids, which are in the order of time, to the millisecond
    in which a row was begun: the times themselves have no index.
    """
    rows = AuditEvent.objects.all()
    exact: dict[str, Any] = {
        "tenant_id": tenant_id,
        "actor_id": actor,
        "subject_type": subject_type,
        "subject_id": subject_id,
        "request_id": request_id,
    }
    rows = rows.filter(**{name: value for name, value in exact.items() if value is not None})
    if action:
        rows = rows.filter(action__startswith=action)
    if since is not None:
        rows = rows.filter(pk__gte=_first_id(since, -_BEGUN_BEFORE_MS), at__gte=since)
    if until is not None:
        rows = rows.filter(pk__lt=_first_id(until, _BEGUN_BEFORE_MS), at__lt=until)
    return rows


def in_batches(rows: "QuerySet[AuditEvent]", *, limit: int) -> Iterator[AuditEvent]:
    """Newest first, at most `limit`, a batch at a time: no cursor is held open while somebody reads slowly."""
    rows = rows.order_by("-pk")
    left, last = limit, None
    while left > 0:
        batch = list((rows.filter(pk__lt=last) if last else rows)[: min(left, _BATCH)])
        yield from batch
        if len(batch) < min(left, _BATCH):
            return
        left, last = left - len(batch), batch[-1].pk


def search_history(
    *,
    table: str | None = None,
    object_id: UUID | None = None,
    tenant_id: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "QuerySet[ConfigurationChange]":
    """Changes of configuration that fit everything that is given; `until` is exclusive."""
    exact: dict[str, Any] = {
        "table": table,
        "object_id": object_id,
        "tenant_id": tenant_id,
        "at__gte": since,
        "at__lt": until,
    }
    return ConfigurationChange.objects.exclude(table="").filter(
        **{name: value for name, value in exact.items() if value is not None}
    )


def history_of(event: AuditEvent) -> "QuerySet[ConfigurationChange]":
    """What the event's transaction changed of the configuration, in its order."""
    if event.transaction is None:
        return ConfigurationChange.objects.none()
    near = (event.at - SAME_TRANSACTION, event.at + SAME_TRANSACTION)
    return ConfigurationChange.objects.filter(transaction=event.transaction, at__range=near).order_by("pk")


def _first_id(moment: datetime, off_ms: int) -> UUID:
    """The smallest id that a row of this moment, `off_ms` later, can have."""
    return uuid7_from(max(0, int(moment.timestamp() * 1000) + off_ms))

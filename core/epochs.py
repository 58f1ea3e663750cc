"""Writers bump a section's epoch inside their transaction; readers poll it and take the changes after theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone

from core import bus
from core.models import Change, SectionEpoch


class Section(StrEnum):
    """Parts of the snapshot that change on their own. Listed in the order in which they are locked."""

    KEYS = "keys"
    GRANTS = "grants"
    LIMITS = "limits"
    PRICES = "prices"
    ISSUERS = "issuers"  # who may sign tokens
    MODELS = "models"
    ENDPOINTS = "endpoints"
    DESIRED = "desired"  # what node agents should run; the object is the node
    POOL = "pool"  # anything the controller should look at


CHANGE_RETENTION: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ChangedObject:
    epoch: int
    object_id: UUID


def bump_epoch(section: Section, object_id: UUID) -> int:
    """Record that `object_id` changed and return the section's new epoch.

    Must run inside the writer's transaction: the section's row stays locked until commit, so
    that epochs become visible in order. Raises RuntimeError outside a transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("bump_epoch outside a transaction would publish a write that may not happen")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO core_sectionepoch (section, epoch, pruned_through) VALUES (%s, 1, 0) "
            "ON CONFLICT (section) DO UPDATE SET epoch = core_sectionepoch.epoch + 1 RETURNING epoch",
            [section.value],
        )
        epoch = int(cursor.fetchone()[0])
        cursor.execute(
            "INSERT INTO core_change (section, epoch, object_id, at) VALUES (%s, %s, %s, now())",
            [section.value, epoch, object_id],
        )
    transaction.on_commit(lambda: bus.hint(section.value, epoch))
    return epoch


def lock_section(section: Section) -> None:
    """Let nobody else bump the section until this transaction ends: what is read from now on is not overtaken."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO core_sectionepoch (section, epoch, pruned_through) VALUES (%s, 0, 0) "
            "ON CONFLICT (section) DO UPDATE SET epoch = core_sectionepoch.epoch",
            [section.value],
        )


def read_epochs() -> dict[str, int]:
    """The newest epoch of every section that was ever bumped."""
    return dict(SectionEpoch.objects.values_list("section", "epoch"))


def read_changes(section: Section, *, after: int, limit: int) -> Sequence[ChangedObject] | None:
    """Changes after an epoch, oldest first, at most `limit`; None when they were pruned: reload the section."""
    row = SectionEpoch.objects.filter(section=section).values_list("pruned_through", flat=True).first()
    if row is not None and row > after:
        return None
    changes = Change.objects.filter(section=section, epoch__gt=after).order_by("epoch")[:limit]
    return [ChangedObject(c.epoch, c.object_id) for c in changes]


@transaction.atomic
def prune_changes(*, older_than: timedelta = CHANGE_RETENTION) -> int:
    """Delete old changes and note how far; returns how many. Safe to run twice."""
    horizon = timezone.now() - older_than
    removed = 0
    newest = Change.objects.filter(at__lt=horizon).values("section").annotate(newest=Max("epoch")).order_by("section")
    for row in newest:
        SectionEpoch.objects.filter(section=row["section"], pruned_through__lt=row["newest"]).update(
            pruned_through=row["newest"]
        )
        deleted, _ = Change.objects.filter(section=row["section"], epoch__lte=row["newest"]).delete()
        removed += deleted
    return removed


def current_epoch(section: Section) -> int:
    """The newest epoch of one section, 0 if it was never bumped."""
    return SectionEpoch.objects.filter(section=section).values_list("epoch", flat=True).first() or 0

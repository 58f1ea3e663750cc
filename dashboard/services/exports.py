"""Long tables as files: asked for by a person, written by a worker, fetched within a day."""

import time
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from core.refusals import Conflict
from dashboard.models import Export, ExportPart, ExportState
from tenants.actor import Actor
from tenants.models import User
from tenants.services.audit import record_audit

KEPT: Final = timedelta(days=1)
MOST_OPEN: Final = 3
"""Exports of one person that may wait or be written at once."""
MOST_ROWS: Final = 5_000_000
LONGEST: Final = timedelta(minutes=4)
"""That one export is written: others wait meanwhile, and a worker's own limit is 5 minutes."""
TOO_LONG: Final = "Writing it took longer than 4 minutes: filter the list, and export it in parts."
_PART_CHARACTERS: Final = 1_000_000
_LOCK: Final = 0x6578_706F  # "expo", beside other advisory locks


@transaction.atomic
def ask_export(person: User, *, tenant_id: UUID | None, table: str, path: str, query: str, actor: Actor) -> Export:
    """Note that a worker shall write it. Raises Conflict beyond MOST_OPEN."""
    User.objects.select_for_update().get(pk=person.pk)
    waiting = Export.objects.filter(person=person, state__in=[ExportState.WAITING, ExportState.WRITING])
    same = waiting.filter(path=path, query=query).first()
    if same is not None:
        return same
    if waiting.count() >= MOST_OPEN:
        raise Conflict(f"{MOST_OPEN} exports of yours are being written: wait until one is ready.")
    export = Export.objects.create(person=person, tenant_id=tenant_id, table=table, path=path, query=query)
    record_audit(
        "export.requested", subject=export, actor=actor, tenant_id=tenant_id, after={"path": path, "query": query}
    )
    return export


def write_export(export_id: UUID, lines: Iterable[str], *, clock: Callable[[], float] = time.monotonic) -> int:
    """Keep the lines, its head among them; returns how many rows. Only once ready can it be fetched.

    Raises Conflict beyond MOST_ROWS, and after LONGEST by `clock`, in seconds.
    """
    ends = clock() + LONGEST.total_seconds()
    rows = -1  # the head is none
    number = 0
    piece: list[str] = []
    held = 0
    for line in lines:
        rows += 1
        if rows > MOST_ROWS:
            raise Conflict(f"More than {MOST_ROWS:,} rows: filter the list, and export it in parts.")
        if clock() > ends:
            raise Conflict(TOO_LONG)
        piece.append(line)
        held += len(line)
        if held >= _PART_CHARACTERS:
            _keep(export_id, number, piece)
            number, piece, held = number + 1, [], 0
    _keep(export_id, number, piece)
    Export.objects.filter(pk=export_id).update(
        state=ExportState.READY, rows=rows, reason="", finished_at=timezone.now()
    )
    return rows


def _keep(export_id: UUID, number: int, piece: list[str]) -> None:
    ExportPart.objects.create(export_id=export_id, number=number, content=zlib.compress("".join(piece).encode(), 6))


def fail_export(export_id: UUID, reason: str) -> None:
    """Say why there is none, and drop what was written."""
    ExportPart.objects.filter(export_id=export_id).delete()
    Export.objects.filter(pk=export_id).update(
        state=ExportState.FAILED, reason=reason[:500], finished_at=timezone.now()
    )


def lock_exports() -> bool:
    """Until the end of the transaction around it: whether nobody else writes one. Whoever writes one has it so long."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


@transaction.atomic
def claim_export() -> Export | None:
    """The one that waits longest, now being written; None while another one is, and where none waits."""
    if not lock_exports():
        return None
    _end_left_behind()
    waiting = Export.objects.select_for_update(of=("self",)).filter(state=ExportState.WAITING)
    export = waiting.select_related("person").order_by("pk").first()
    if export is not None:
        export.state = ExportState.WRITING
        export.save(update_fields=["state"])
    return export


def unclaim_export(export_id: UUID) -> None:
    """It waits again: somebody else's came first."""
    Export.objects.filter(pk=export_id).update(state=ExportState.WAITING, reason="", finished_at=None)


def prune_exports(*, now: datetime) -> int:
    """Delete what nobody can fetch any more, and end what a worker left behind; returns how many were deleted."""
    with transaction.atomic():
        if lock_exports():
            _end_left_behind()
    deleted, _ = Export.objects.filter(created_at__lt=now - KEPT).delete()
    return deleted


def _end_left_behind() -> None:
    """For whoever has the lock: nobody writes these, whatever they say."""
    for left in Export.objects.filter(state=ExportState.WRITING):
        fail_export(left.pk, "The worker that wrote it ended before it was done. Ask for it again.")

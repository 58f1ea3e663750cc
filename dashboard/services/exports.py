"""Long tables as files: asked for by a person, written by a worker, fetched within a day."""

import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
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
_PART_CHARACTERS: Final = 1_000_000
_STUCK: Final = timedelta(minutes=30)


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


def write_export(export_id: UUID, lines: Iterable[str]) -> int:
    """Keep the lines, its head among them; returns how many rows. Only once ready can it be fetched."""
    rows = -1  # the head is none
    number = 0
    piece: list[str] = []
    held = 0
    for line in lines:
        rows += 1
        if rows > MOST_ROWS:
            raise Conflict(f"More than {MOST_ROWS:,} rows: filter the list, and export it in parts.")
        piece.append(line)
        held += len(line)
        if held >= _PART_CHARACTERS:
            _keep(export_id, number, piece)
            number, piece, held = number + 1, [], 0
    _keep(export_id, number, piece)
    Export.objects.filter(pk=export_id).update(state=ExportState.READY, rows=rows, finished_at=timezone.now())
    return rows


def _keep(export_id: UUID, number: int, piece: list[str]) -> None:
    ExportPart.objects.create(export_id=export_id, number=number, content=zlib.compress("".join(piece).encode(), 6))


def fail_export(export_id: UUID, reason: str) -> None:
    """Say why there is none, and drop what was written."""
    ExportPart.objects.filter(export_id=export_id).delete()
    Export.objects.filter(pk=export_id).update(
        state=ExportState.FAILED, reason=reason[:500], finished_at=timezone.now()
    )


def claim_export(export_id: UUID) -> Export | None:
    """The export, now being written; None where somebody has it or it is gone."""
    with transaction.atomic():
        export = Export.objects.select_for_update(skip_locked=True).filter(pk=export_id, state=ExportState.WAITING)
        found = export.select_related("person").first()
        if found is not None:
            found.state = ExportState.WRITING
            found.save(update_fields=["state"])
    return found


def prune_exports(*, now: datetime) -> int:
    """Delete what nobody fetches any more, and end what a worker left behind; returns how many were deleted."""
    for stuck in Export.objects.filter(state=ExportState.WRITING, created_at__lt=now - _STUCK):
        fail_export(stuck.pk, "The worker that wrote it ended before it was done. Ask for it again.")
    deleted, _ = Export.objects.filter(created_at__lt=now - KEPT).delete()
    return deleted

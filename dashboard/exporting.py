"""Writes the exports that people asked for, one after the other."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

import structlog
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import Http404

from core.refusals import Conflict
from dashboard.models import Export, ExportPart, ExportState
from dashboard.services.exports import claim_export, fail_export, write_export
from dashboard.tables.worker import read_table

STATEMENT_TIMEOUT_MS: Final = 240_000
"""Longer than a page may: nobody waits, and a worker's own limit is 300 s."""

log = structlog.get_logger(__name__)


def write_waiting_exports() -> int:
    """All that wait now, oldest first; returns how many were claimed."""
    done = 0
    for export_id in Export.objects.filter(state=ExportState.WAITING).order_by("pk").values_list("pk", flat=True)[:20]:
        export = claim_export(export_id)
        if export is not None:
            done += 1
            _write(export)
    return done


def _write(export: Export) -> None:
    person = export.person

    def keep(lines: Iterable[str]) -> None:
        write_export(export.pk, lines)

    try:
        with transaction.atomic():  # a cursor on the server, and one moment of all its rows
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
            if not person.is_active:
                raise PermissionDenied
            status = read_table(person, path=export.path, query=export.query, sink=keep)
        if status != 200:
            fail_export(export.pk, "You may not see this list any more.")
    except (PermissionDenied, Http404):
        fail_export(export.pk, "You may not see this list any more.")
    except Conflict as error:
        fail_export(export.pk, error.message)
    except Exception:
        log.exception("export_failed", export=str(export.pk), table=export.table)
        fail_export(export.pk, "Writing it failed; the log of the worker says why. Ask for it again.")


def read_parts(export_id: UUID) -> Iterator[bytes]:
    """The file, a piece at a time."""
    for number in ExportPart.objects.filter(export_id=export_id).order_by("number").values_list("number", flat=True):
        yield zlib.decompress(ExportPart.objects.get(export_id=export_id, number=number).content)

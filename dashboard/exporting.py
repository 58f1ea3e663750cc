"""Writes the exports that people asked for, one at a time in the whole installation.

The threads that could write another one carry alerts and webhooks, too, which are of no use once they are late.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

import structlog
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection, transaction
from django.http import Http404
from psycopg.errors import QueryCanceled

from core.refusals import Conflict
from dashboard.models import Export, ExportPart
from dashboard.services.exports import (
    TOO_LONG,
    claim_export,
    fail_export,
    lock_exports,
    unclaim_export,
    write_export,
)
from dashboard.tables.worker import read_table

STATEMENT_TIMEOUT_MS: Final = 240_000
"""Longer than a page may: nobody waits, and a worker's own limit is 300 s."""

log = structlog.get_logger(__name__)


def write_next_export() -> int:
    """The one that waits longest, unless one is being written; returns how many were claimed."""
    export = claim_export()
    if export is None:
        return 0
    _write(export)
    return 1


def _write(export: Export) -> None:
    person = export.person

    def keep(lines: Iterable[str]) -> None:
        try:
            write_export(export.pk, lines)
        except OperationalError as error:  # the page around it would take this for its own
            if isinstance(error.__cause__, QueryCanceled):
                raise Conflict(TOO_LONG) from error
            raise

    try:
        with transaction.atomic():  # a cursor on the server, one moment of all its rows, and the lock
            if not lock_exports():  # lost since the claim, which had to be seen before
                unclaim_export(export.pk)
                return
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

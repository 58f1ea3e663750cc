"""A table as CSV: all rows that the filters leave, in the order on the page."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from core.api.csv import safe_cell as text_cell
from core.refusals import Conflict
from dashboard.refusals import said
from dashboard.services.exports import ask_export
from dashboard.tables.table import Table
from dashboard.tables.worker import sink_of_worker
from tenants.actor import user_actor
from tenants.models import User

CSV_LIMIT: Final = 50_000
"""Most rows that are told in an answer; more are written by a worker, for the asker to fetch."""

LONGEST_QUERY: Final = 1_000
_BATCH: Final = 2_000


class _Line:
    """A file that gives back what is written to it."""

    def write(self, text: str) -> str:
        return text


def is_csv(request: HttpRequest) -> bool:
    """Whether the address asks for the table as CSV."""
    return request.GET.get("format") == "csv"


def safe_cell(value: object) -> str:
    """`value` as text that no spreadsheet computes: a leading sign of a formula is quoted (OWASP, CSV injection)."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return timezone.localtime(value).isoformat(timespec="milliseconds")
    if isinstance(value, (int, float)):
        return str(value)
    return str(text_cell(str(value)))


def line_of(cells: Iterable[object]) -> str:
    """The cells as a line of CSV."""
    return str(csv.writer(_Line()).writerow([safe_cell(cell) for cell in cells]))


def csv_lines(table: Table, rows: "QuerySet[Any]", sort: str) -> Iterator[str]:
    """Lines of the sheet, its head first; rows are read a batch at a time."""
    columns = [column for column in table.columns if column.value is not None]
    yield line_of(column.key for column in columns)
    chosen = table.column(sort.removeprefix("-"))
    assert chosen is not None  # the table's own way to sort
    sign = "-" if sort.startswith("-") else ""
    ordered = rows.order_by(f"{sign}{chosen.order}", f"{sign}pk")
    for row in ordered.iterator(chunk_size=_BATCH):
        yield line_of(column.value(row) for column in columns if column.value is not None)


def csv_response(table: Table, request: HttpRequest, rows: "QuerySet[Any]") -> HttpResponse:
    """All rows as a file; where they are more than CSV_LIMIT, the page of an export that a worker writes."""
    lines = csv_lines(table, rows, table.chosen_sort(request.GET.get("sort", "")))
    sink = sink_of_worker()
    if sink is not None:
        sink(lines)
        return HttpResponse(status=200)
    if rows.order_by()[: CSV_LIMIT + 1].count() > CSV_LIMIT:
        return ask_worker(table.name, request)
    response = HttpResponse(lines, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{table.name}.csv"'
    return response


def ask_worker(name: str, request: HttpRequest, *, pinned: Mapping[str, str] | None = None) -> HttpResponse:
    """The page of an export that a worker writes of the page that the request asks for.

    `pinned`: what the address says otherwise than it did, so that later it means what it means now.
    """
    if getattr(request, "viewing", None) is not None:  # asking would write, and the worker would look with other eyes
        raise PermissionDenied
    person = request.user
    assert isinstance(person, User)  # pages are for people who are logged in
    query = request.GET.copy()
    for unasked in ("format", "after", "before", "count"):
        query.pop(unasked, None)
    asked = query.urlencode()
    for key, value in (pinned or {}).items():
        query[key] = value
    if len(query.urlencode()) > LONGEST_QUERY:
        messages.error(request, _("This filter is too long for an export: shorten it."))
        return redirect(request.path)
    tenant = getattr(getattr(request, "portal", None), "tenant", None)
    try:
        export = ask_export(
            person,
            tenant_id=tenant.pk if tenant is not None else None,
            table=name,
            path=request.path,
            query=query.urlencode(),
            actor=user_actor(person.pk),
        )
    except Conflict as error:
        messages.error(request, said(error.message))
        return redirect(f"{request.path}?{asked}")
    return redirect("export", export.pk)

"""A table as CSV: all rows that the filters leave, in the order on the page."""

import csv
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from dashboard.tables.table import Table

CSV_LIMIT: Final = 50_000
"""Most rows that are told in an answer; more are written by a worker, for the asker to fetch."""

_BATCH: Final = 2_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


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
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_lines(table: Table, rows: "QuerySet[Any]", sort: str) -> Iterator[str]:
    """Lines of the sheet, its head first; rows are read a batch at a time."""
    writer = csv.writer(_Line())
    columns = [column for column in table.columns if column.value is not None]
    yield writer.writerow([column.key for column in columns])
    chosen = table.column(sort.removeprefix("-"))
    assert chosen is not None  # the table's own way to sort
    sign = "-" if sort.startswith("-") else ""
    ordered = rows.order_by(f"{sign}{chosen.order}", f"{sign}pk")
    for row in ordered.iterator(chunk_size=_BATCH):
        yield writer.writerow([safe_cell(column.value(row)) for column in columns if column.value is not None])


def csv_response(table: Table, request: HttpRequest, rows: "QuerySet[Any]") -> HttpResponse:
    """The first CSV_LIMIT rows as a file."""
    sort = table.chosen_sort(request.GET.get("sort", ""))
    response = HttpResponse(
        islice(csv_lines(table, rows, sort), CSV_LIMIT + 1),  # with the head
        content_type="text/csv; charset=utf-8",
    )
    response["Content-Disposition"] = f'attachment; filename="{table.name}.csv"'
    return response

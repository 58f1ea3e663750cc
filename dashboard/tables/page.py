"""One page of a table: found by the value that it is sorted by, so that page 1,000 costs what page 1 does."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from dashboard.tables.table import Heading, Table

COUNT_LIMIT: Final = 10_000
"""Most rows that a page counts of itself; beyond, it says "10,000+" and asks for the exact total after."""

_signer: Final = Signer(salt="dashboard.tables")
"""A cursor comes back from the address: only ours is read."""


@dataclass(frozen=True, slots=True)
class Page:
    """What `components/table_head.html` and `table_foot.html` write."""

    table: Table
    rows: Sequence[Any]
    sort: str
    counted: int  # at most COUNT_LIMIT + 1
    exact: bool  # the total was asked for
    older: str | None  # cursors of the neighbours; None at an end
    newer: str | None
    first: bool  # nothing was passed over

    @property
    def headings(self) -> list[Heading]:
        found = []
        for column in self.table.columns:
            direction = ""
            if self.sort.removeprefix("-") == column.key:
                direction = "descending" if self.sort.startswith("-") else "ascending"
            turned = f"-{column.key}" if direction == "ascending" else column.key
            found.append(
                Heading(
                    key=column.key,
                    label=column.label,
                    numeric=column.numeric,
                    hidden_label=column.hidden_label,
                    sort=turned if column.order else "",
                    direction=direction,
                )
            )
        return found

    @property
    def many(self) -> bool:
        """There are more than were counted."""
        return not self.exact and self.counted > COUNT_LIMIT


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    backwards: bool
    value: Any
    key: str


def read_page(table: Table, request: HttpRequest, rows: "QuerySet[Any]", *, total: int | None = None) -> Page:
    """The page that the address asks for; what makes no sense there is passed over.

    `rows` must not be sorted. `total`: how many there are, where that is known without counting. Three queries at most.
    """
    sort = table.chosen_sort(request.GET.get("sort", ""))
    column = table.column(sort.removeprefix("-"))
    assert column is not None  # chosen_sort names one
    descending = sort.startswith("-")
    cursor = _read_cursor(request.GET.get("after", ""), sort)
    backwards = cursor is not None and cursor.backwards
    found = _ordered(rows, column.order, descending=descending is not backwards)
    if cursor is not None:
        try:
            found = found.filter(_beyond(rows, column.order, cursor, descending=descending is not backwards))
        except (ValidationError, ValueError, TypeError):
            cursor, backwards = None, False
            found = _ordered(rows, column.order, descending=descending)
    page = list(found[: table.page_size + 1])
    more = len(page) > table.page_size
    page = page[: table.page_size]
    if backwards:
        page.reverse()
    exact = total is not None or request.GET.get("count") == "exact"
    if total is None and cursor is None and not more:
        total = len(page)  # all of them are here: where they are hard to find, a count would find them all again
    if total is None:
        total = rows.count() if exact else _count_some(rows)
    older = (more or backwards) and bool(page)
    newer = (more if backwards else cursor is not None) and bool(page)
    return Page(
        table=table,
        rows=page,
        sort=sort,
        counted=total,
        exact=exact,
        older=_write_cursor(page[-1], column.order, sort, backwards=False) if older else None,
        newer=_write_cursor(page[0], column.order, sort, backwards=True) if newer else None,
        first=cursor is None,
    )


def _count_some(rows: "QuerySet[Any]") -> int:
    return rows.order_by()[: COUNT_LIMIT + 1].count()


def _ordered(rows: "QuerySet[Any]", order: str, *, descending: bool) -> "QuerySet[Any]":
    sign = "-" if descending else ""
    return rows.order_by(f"{sign}{order}") if order in ("pk", "id") else rows.order_by(f"{sign}{order}", f"{sign}pk")


def _beyond(rows: "QuerySet[Any]", order: str, cursor: _Cursor, *, descending: bool) -> Q:
    than = "lt" if descending else "gt"
    key = rows.model._meta.pk.to_python(cursor.key)
    if order in ("pk", "id"):
        return Q(**{f"pk__{than}": key})
    # By itself, "or" is a filter to the planner, and every row before the cursor is read: an index begins at the bound.
    bound = Q(**{f"{order}__{than}e": cursor.value})
    return bound & (Q(**{f"{order}__{than}": cursor.value}) | Q(**{order: cursor.value, f"pk__{than}": key}))


def _write_cursor(row: Any, order: str, sort: str, *, backwards: bool) -> str:
    value = row
    for step in order.split("__"):
        value = getattr(value, step)
    if isinstance(value, (datetime, date, UUID, Decimal, models.Model)):
        value = value.isoformat() if isinstance(value, (datetime, date)) else str(value)
    told = _Cursor(backwards, None if order in ("pk", "id") else value, str(row.pk))
    return _signer.sign_object([sort, msgspec.to_builtins(told)], compress=True)


def _read_cursor(text: str, sort: str) -> _Cursor | None:
    if not text:
        return None
    try:
        of, told = _signer.unsign_object(text)
        return msgspec.convert(told, _Cursor) if of == sort else None
    except (BadSignature, ValueError, TypeError, msgspec.ValidationError):
        return None

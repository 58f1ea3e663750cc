"""Tables for spreadsheets, sent as they are read."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from django.http import HttpRequest

from core.api.downloads import download

MEDIA_TYPE: Final = "text/csv"
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are full-width forms, which spreadsheets in East Asian languages take for the same (OWASP)."""
_ROWS_A_CHUNK: Final = 500


def csv_response(request: HttpRequest, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """A download of `rows`, which may come from the database as they are sent: an error in the middle cuts it off.

    Texts that a spreadsheet would take for a formula get an apostrophe before them; numbers stay numbers. UTF-8
    without a byte order mark, which programs would take for a part of the first name: spreadsheets go by the type.
    """
    return download(request, name, f"{MEDIA_TYPE}; charset=utf-8", _chunks(chain((header,), rows)))


def safe_cell(value: Any) -> Any:
    """The value as a cell that no spreadsheet runs."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return "" if value is None else value


def _chunks(rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    left = iter(rows)
    while batch := list(islice(left, _ROWS_A_CHUNK)):
        text = io.StringIO()
        csv.writer(text).writerows([safe_cell(value) for value in row] for row in batch)
        yield text.getvalue().encode()

"""Tables for spreadsheets, sent as they are read."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse

MEDIA_TYPE: Final = "text/csv"
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_ROWS_A_CHUNK: Final = 500


def csv_response(request: HttpRequest, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """A download of `rows`, which may come from the database as they are sent: an error in the middle cuts it off.

    Texts that a spreadsheet would take for a formula get an apostrophe before them; numbers stay numbers. UTF-8
    without a byte order mark, which programs would take for a part of the first name: spreadsheets go by the type.
    """
    chunks = _chunks(chain((header,), rows))
    # Django would read a synchronous iterator to its end before it sends anything under ASGI.
    content = _off_the_loop(chunks) if hasattr(request, "scope") else chunks
    response = StreamingHttpResponse(content, content_type=f"{MEDIA_TYPE}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response


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


async def _off_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(chunks, None)

    while (chunk := await sync_to_async(following)()) is not None:
        yield chunk

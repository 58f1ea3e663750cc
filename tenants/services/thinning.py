"""Deletes sums that nobody looks at any more: some at a time, so that nobody who adds to them waits long."""

from datetime import datetime
from typing import Final

from django.db import connection

MOST: Final = 20_000
_DELETE: Final = (
    "DELETE FROM {table} WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM {table} WHERE {column} < %s ORDER BY {column} LIMIT %s))"
)


def delete_before(table: str, column: str, until: datetime, *, most: int = MOST) -> int:
    """Rows of before `until`, `most` in one statement; returns how many. Safe to run twice."""
    deleted = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_DELETE.format(table=table, column=column), [until, most])
            found: int = cursor.rowcount
        deleted += found
        if found < most:
            return deleted

"""Keyset pages of the control API: their cost does not grow with how far one reads."""

from uuid import UUID

from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request


class NewestFirst(CursorPagination):
    """Newest first, `?limit=` rows a page; a cursor that no page handed out is 404."""

    ordering = "-id"  # UUIDv7: the order of creation
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500

    def decode_cursor(self, request: Request) -> Cursor | None:
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            try:
                UUID(str(cursor.position))
            except ValueError as error:  # else the query would fail on it
                raise NotFound(self.invalid_cursor_message) from error
        return cursor

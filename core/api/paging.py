"""Keyset pages of the control API: their cost does not grow with how far one reads."""

from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request


class NewestFirst(CursorPagination):
    """Newest first, `?limit=` rows a page (1 to 500, 50 when it is not said); a cursor that no page handed out is 404.

    Answers `{"next": address or null, "previous": ..., "results": [...]}`.
    """

    ordering = "-id"  # UUIDv7: the order of creation
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500

    def get_page_size(self, request: Request) -> int:
        """Raises ValidationError naming `limit` for what is no number of rows that a page may have."""
        said = request.query_params.get("limit")
        if said is None:
            return self.page_size
        if not (said.isascii() and said.isdigit() and len(said) <= 3 and 1 <= int(said) <= self.max_page_size):
            raise ValidationError({"limit": [f"A whole number from 1 to {self.max_page_size}."]})
        return int(said)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                parameter["schema"] |= {"minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        return parameters

    def decode_cursor(self, request: Request) -> Cursor | None:
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None and not self.could_be(str(cursor.position)):
            raise NotFound(self.invalid_cursor_message)  # else the query would fail on it
        return cursor

    def could_be(self, position: str) -> bool:
        """Whether a page may have handed out this value of the ordering's column."""
        try:
            UUID(position)
        except ValueError:
            return False
        return True


class NewestNumberFirst(NewestFirst):
    """The same for rows that are counted."""

    def could_be(self, position: str) -> bool:
        return position.isascii() and position.isdigit() and len(position) <= 18  # fits a bigint

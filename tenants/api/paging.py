"""Keyset pages: their cost does not grow with how far one reads."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    ordering = "-id"  # UUIDv7: the order of creation
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500

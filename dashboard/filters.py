"""What the address of a list asks for; an address can hold anything, and no page may fail on it."""

from typing import Final
from uuid import UUID

from django.http import HttpRequest

SEARCH_LENGTH: Final = 200


def search_text(request: HttpRequest) -> str:
    """The words in `?q=`, as PostgreSQL can look for them: no NUL, at most SEARCH_LENGTH characters."""
    return request.GET.get("q", "").replace("\x00", "").strip()[:SEARCH_LENGTH]


def page_number(request: HttpRequest) -> int:
    """The page in `?page=`, from 1; whether there are so many is the list's to say."""
    text = request.GET.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 7 else 1


def row_before(request: HttpRequest) -> UUID | None:
    """The row in `?before=`, older than which a page begins; None for the newest page."""
    try:
        return UUID(request.GET.get("before", ""))
    except ValueError:
        return None


def tenant_slug(request: HttpRequest) -> str:
    """The tenant in `?tenant=` whose rows alone a list of all tenants shows; "" for all."""
    return request.GET.get("tenant", "").replace("\x00", "").strip()[:63]

"""The command palette's answers: JSON, at most some of each kind."""

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.access import PortalAccess, console_page, portal_page
from dashboard.filters import search_text
from dashboard.navigation import Group, console_groups, portal_groups
from dashboard.reads.palette import Found, find_in_console, find_in_portal

SHORTEST = 2
"""Fewest characters that things are sought by; pages are found by one."""


@require_GET
@console_page
def console(request: HttpRequest) -> HttpResponse:
    words = search_text(request)
    groups = console_groups(view_name="", superuser=bool(getattr(request.user, "is_superuser", False)))
    return _answer(pages_of(groups, words), find_in_console(words) if len(words) >= SHORTEST else [])


@require_GET
@portal_page
def portal(request: HttpRequest, access: PortalAccess) -> HttpResponse:
    words = search_text(request)
    groups = portal_groups(access.tenant, view_name="", active_keys="")
    return _answer(pages_of(groups, words), find_in_portal(access.tenant, words) if len(words) >= SHORTEST else [])


def pages_of(groups: list[Group], words: str) -> list[Found]:
    """Entries of the sidebar whose name holds the words, in any case."""
    return [
        Found(kind="page", label=str(item.label), where=group.title, icon=item.icon, href=item.href)
        for group in groups
        for item in group.items
        if words.casefold() in str(item.label).casefold()
    ]


def _answer(pages: list[Found], things: list[Found]) -> HttpResponse:
    response = HttpResponse(msgspec.json.encode([*pages, *things]), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response

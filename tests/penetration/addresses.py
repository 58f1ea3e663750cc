"""Every address of the installation, with what stands for its parameters."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from django.urls import URLResolver, get_resolver

_PARAMETER: Final = re.compile(r"<(?:\w+:)?(\w+)>")
STRANGE: Final = ("(?P", "^", "\\")
"""Routes that are regular expressions are the inference doors' catch-alls."""
NOT_OURS: Final = ("/backoffice/", "/static/")


def routes() -> list[str]:
    """All routes as they are written in URL configurations, e.g. /t/<slug:slug>/keys/."""
    return sorted(
        {route for route in _routes(get_resolver().url_patterns, "/") if not any(mark in route for mark in STRANGE)}
    )


def _routes(patterns: list[Any], prefix: str) -> Iterator[str]:
    for one in patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from _routes(one.url_patterns, route)
        elif not route.startswith(NOT_OURS):
            yield route


def fill(route: str, known: Mapping[str, str]) -> str:
    """The route with `known` ids; others get ids that nothing has."""
    return _PARAMETER.sub(lambda found: known.get(found.group(1), str(uuid4())), route)


def pages() -> list[str]:
    """Routes of the browser's pages: what is neither an API nor an inference door."""
    return [route for route in routes() if not route.startswith(("/api/", "/v1/", "/v2"))]

"""A worker's look at a page's table: the page itself is asked, as the person who wants the file, for all its rows.

So the same filters and the same permissions hold, and no list of tables has to be kept beside the pages.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.urls import resolve

from tenants.models import User

Sink = Callable[[Iterable[str]], None]
_sink: ContextVar[Sink | None] = ContextVar("table_sink", default=None)


def sink_of_worker() -> Sink | None:
    """Where a worker wants the lines of the table; None in a web request."""
    return _sink.get()


@contextmanager
def _written_to(sink: Sink) -> Iterator[None]:
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def read_table(person: User, *, path: str, query: str, sink: Sink) -> int:
    """Give all lines of the table at `path` to `sink`; returns the page's status, 200 when it has been given them."""
    request = HttpRequest()
    request.method = "GET"
    request.path = request.path_info = path
    request.GET = QueryDict(f"{query}&format=csv" if query else "format=csv")
    request.user = person
    request.session = SessionBase()
    request.META.update({"SERVER_NAME": "worker", "SERVER_PORT": "80"})
    request.resolver_match = found = resolve(path)
    with _written_to(sink):
        response: HttpResponseBase = found.func(request, *found.args, **found.kwargs)
    return response.status_code


def may_read_table(person: User, *, path: str) -> bool:
    """Whether the page would still give its table to the person; none of its rows are read."""
    try:
        return read_table(person, path=path, query="", sink=lambda _lines: None) == 200
    except (PermissionDenied, Http404):
        return False

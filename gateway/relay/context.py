"""What a request's log lines say about it: its id, whose it is, and the caller's trace.

Bound only around a line that is written: a request that goes well writes none, and pays nothing.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import structlog

from gateway.relay.plan import Headers, SlimRequest
from tenants.principal import Principal

_TRACE_ID: Final = slice(3, 35)  # version-TRACE ID-parent id-flags (W3C trace context)


def trace_id(headers: Headers) -> str | None:
    """The trace id of a `traceparent` header, None without a right one."""
    for name, value in headers:
        if name == b"traceparent":
            text = value.decode("latin-1")
            found = text[_TRACE_ID]
            right = len(text) >= 55 and text[2] == text[35] == "-" and not set(found) - set("0123456789abcdef")
            return found if right else None
    return None


@contextlib.contextmanager
def logged_as(request: SlimRequest | None, principal: Principal | None = None) -> Iterator[None]:
    """Lines written inside carry what is known of request_id, trace_id, tenant and key_id or subject_id."""
    known: dict[str, str | None] = {}
    if request is not None:
        known |= {"request_id": str(request.request_id), "trace_id": trace_id(request.headers)}
    if isinstance(principal, Principal):  # Django's anonymous user is none
        known |= {"tenant": principal.tenant_slug}
        if principal.key_id is not None:
            known["key_id"] = str(principal.key_id)
        elif principal.subject_id is not None:
            known["subject_id"] = str(principal.subject_id)
    with structlog.contextvars.bound_contextvars(**{name: value for name, value in known.items() if value}):
        yield

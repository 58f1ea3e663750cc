"""The head of a request to an engine: an allow-list, nothing of the client's passes by default.

In particular never its Authorization, cookies, hop-by-hop headers or claims about who it is.
"""

import re
from functools import lru_cache
from typing import Final

from gateway.relay.plan import Endpoint, SlimRequest, TrafficClass

_PASSED: Final = {
    # W3C trace context, as its grammar has it, so that an engine's spans join the caller's trace.
    b"traceparent": re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,256})?"),
    b"tracestate": re.compile(rb"[\x20-\x7e\t]{1,512}"),
}
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f]")


def request_head(
    request: SlimRequest,
    endpoint: Endpoint,
    *,
    method: str,
    path: str,
    stream: bool,
    body_bytes: int,
    seconds_left: float,
) -> bytes:
    """Request line and headers, up to and including the blank line.

    `seconds_left` is how long the answer is waited for: an engine that looks need not go on after that. Who is more or
    less urgent than usual is said as `x-gatehouse-class: p0` or `p2`, for what stands before an engine and looks.
    """
    trace = b""
    for name, value in request.headers:
        if name in _PASSED and _PASSED[name].fullmatch(value):
            trace += b"%b: %b\r\n" % (name, value)
    if request.traffic_class is not None and request.traffic_class is not TrafficClass.STANDARD:
        trace += b"x-gatehouse-class: %b\r\n" % request.traffic_class.encode()
    return b"%b%bx-request-id: %b\r\nx-request-deadline-ms: %d\r\ncontent-length: %d\r\n%b\r\n" % (
        _fixed_head(method, endpoint.host, endpoint.port, endpoint.base_path + path, endpoint.authorization),
        b"accept: text/event-stream\r\n" if stream else b"accept: application/json\r\n",
        str(request.request_id).encode(),
        int(seconds_left * 1000),
        body_bytes,
        trace,
    )


@lru_cache(maxsize=4096)
def _fixed_head(method: str, host: str, port: int, path: str, authorization: str | None) -> bytes:
    """The part that is the same for every request to an endpoint.

    Raises ValueError for an address or credential that would break the head's lines.
    """
    for part in (method, host, path):
        if _UNSAFE.search(part):
            raise ValueError(f"an endpoint's {part!r} cannot be written in a request")
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {f'[{host}]' if ':' in host else host}:{port}",
        "user-agent: gatehouse",
        "accept-encoding: identity",  # the answer is read on its way: nothing is to be undone
        "content-type: application/json",
    ]
    if authorization is not None:
        if not authorization.isprintable():
            raise ValueError("an endpoint's authorization cannot be written in a request")
        lines.append(f"authorization: {authorization}")
    return "".join(f"{line}\r\n" for line in lines).encode()

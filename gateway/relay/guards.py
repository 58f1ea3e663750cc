"""Bounds on what a client may do to the relay with a request's body."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar, Final

from core.errors import BodyTooLarge, InvalidRequest
from gateway.relay.encoding import EncodingError, InflatedTooLarge, UnknownEncoding, inflater_for
from gateway.relay.memory import Claim
from gateway.relay.plan import Headers

Message = MutableMapping[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ABORT: Final = "gatehouse.abort"
"""ASGI scope key, set by our server: a function that drops the client's connection at once."""

ON_LEAVING: Final = "gatehouse.on_leaving"
"""ASGI scope key, set by our server: a function that takes what is to be called when the client leaves.

Cheaper than a task that waits in `receive` for it, which is what a server without the key gets.
"""

WRITE: Final = "gatehouse.write"
"""ASGI scope key, set by our server: writes bytes of the response's body at once, after its head and first bytes
have been sent; returns False when the client does not keep up (send the next bytes as ASGI has it, which waits).
"""

ON_STOPPING: Final = "gatehouse.on_stopping"
"""ASGI scope key of a websocket, set by our server: a function that takes what is to be called when the process stops.

An application that gives it something ends the websocket itself; others have it closed under them.
"""

_LENGTH_DIGITS: Final = 18


class UnsupportedEncoding(InvalidRequest):
    """A request body in an encoding that is not undone here."""

    status: ClassVar[int] = 415
    code: ClassVar[str] = "unsupported_content_encoding"
    default_message: ClassVar[str] = "The body's Content-Encoding is not supported: send gzip, deflate or none."


class ClientGone(Exception):
    """The client left before its request was whole; there is nobody to answer."""


async def read_body(receive: Receive, headers: Headers, *, cap_bytes: int, claim: Claim) -> bytes:
    """The request's body, as the client meant it: encodings undone. What is held of it is put on `claim`.

    Raises BodyTooLarge before reading when the declared length is over the cap, and while reading as
    soon as the bytes are (what comes out of an encoding counts); UnsupportedEncoding; InvalidRequest
    for a broken encoding; RelayMemoryExhausted; ClientGone.
    """
    encoding = None
    for name, value in headers:
        if name == b"content-length":
            if len(value) > _LENGTH_DIGITS or int(value) > cap_bytes:
                raise too_large(cap_bytes)
        elif name == b"content-encoding":
            encoding = value if encoding is None else encoding + b"," + value
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > cap_bytes:
            raise too_large(cap_bytes)
        claim.take(len(body))
        return body if encoding is None else _decode(body, encoding, cap_bytes, claim)
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > cap_bytes:
            raise too_large(cap_bytes)
        claim.take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            break
        message = await receive()
    return _decode(b"".join(parts), encoding, cap_bytes, claim)


def _decode(body: bytes, encoding: bytes | None, cap_bytes: int, claim: Claim) -> bytes:
    plain = decode_body(body, encoding, cap_bytes=cap_bytes)
    if plain is not body:
        claim.take(len(plain))
    return plain


def decode_body(body: bytes, encoding: bytes | None, *, cap_bytes: int) -> bytes:
    """`body` with its Content-Encoding undone; raises like `read_body`."""
    try:
        inflater = inflater_for(encoding, cap_bytes)
        if inflater is None:
            return body
        plain = inflater.feed(body)
        inflater.end()
    except UnknownEncoding as error:
        raise UnsupportedEncoding from error
    except InflatedTooLarge as error:
        raise too_large(cap_bytes) from error
    except EncodingError as error:
        raise InvalidRequest("The body is not what its Content-Encoding says.") from error
    return plain


def too_large(cap_bytes: int) -> BodyTooLarge:
    """413, saying what the cap is."""
    return BodyTooLarge(f"The request body is larger than the {cap_bytes} bytes that this gateway accepts.")

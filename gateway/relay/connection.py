"""One keep-alive connection to an engine; what comes over it is a `gateway.relay.response.UpstreamResponse`."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from gateway.relay.response import UpstreamResponse
from gateway.relay.upstream_errors import BadResponse, ConnectionLost


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on what is held of an engine's response, in bytes."""

    head_bytes: int = 64 * 1024  # of the head; and between two pieces of the body, and after the last (trailers)
    buffer_bytes: int = 64 * 1024  # unread body beyond which the socket is not read any more


_chunk_size = re.compile(rb"([0-9a-fA-F]{1,6})\r\n").match


def _whole_chunks(data: bytes) -> bytes | None:
    """The content, if `data` is one or more whole chunks of a chunked body, as nearly every read of a stream is."""
    contents: list[bytes] = []
    position, length = 0, len(data)
    while position < length:
        size = _chunk_size(data, position)
        if size is None:
            return None
        start = size.end()
        end = start + int(size[1], 16)
        position = end + 2
        if end == start or position > length or not data.startswith(b"\r\n", end):
            return None  # the last one, which may have trailers, or one that is not all there
        contents.append(data[start:end])
    return contents[0] if len(contents) == 1 else b"".join(contents)


class Connection(asyncio.Protocol):
    """The protocol of one socket; used for one response at a time.

    `on_free(connection)` is called when it may carry the next one, `on_closed(connection)` once when
    it is gone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        *,
        on_free: Callable[["Connection"], None],
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.touched = False  # a byte has come since `start`
        self._limits = limits
        self._on_free = on_free
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: UpstreamResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._framing_bytes = 0  # since the last piece of the body
        self._at_chunk = False  # between two chunks of a body, with nothing of the next one come
        self._body_came = False  # with the bytes that were handed to the parser last
        self._informational = False
        self._until_close = False
        self._message_done = False
        self._reusable = False
        self._excess = False
        self._discarding = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be written to it."""
        return self._transport is not None and self._response is None and not self._transport.is_closing()

    def start(self, head: bytes, body: bytes) -> UpstreamResponse:
        """Send a request; the connection must be `usable`."""
        transport = self._transport
        if transport is None:
            raise ConnectionLost("the connection is gone")
        self.touched = False
        self._head_bytes = self._framing_bytes = 0
        self._headers = []
        self._body_came = self._at_chunk = False
        self._informational = self._until_close = self._message_done = self._discarding = False
        self._response = response = UpstreamResponse(self)
        if len(body) < 1 << 16:
            transport.write(head + body)
        else:
            transport.writelines((head, body))  # without a copy of a large body
        return response

    def watch(self, deadline: float) -> None:
        """See to it that the response's deadline is checked at loop time `deadline`.

        One timer lives on over many reads and requests and is only replaced by an earlier one: to set
        and cancel a timer for each event would cost more than the event.
        """
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        response = self._response
        if response is not None:
            again = response.check_deadline(self.loop.time())
            if again is not None:
                self.watch(again)

    def resume(self) -> None:
        """The consumer has read: take from the socket again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def discard(self, seconds: float) -> None:
        """Throw away what still comes of the response, and close if its end has not come in time."""
        self._discarding = True
        self.resume()
        self.loop.call_later(seconds, self._give_up_discarding, self._response)

    def _give_up_discarding(self, response: UpstreamResponse | None) -> None:
        if response is not None and response is self._response:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nobody asked: such a connection cannot be trusted any more
            self.abort()
            return
        self.touched = True
        if self._at_chunk and (content := _whole_chunks(data)) is not None and response.hand(content, self.loop):
            self._framing_bytes = 0
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._excess = True
            if not self._message_done:
                response.fail(BadResponse(f"not HTTP: {error}", said=data))
        if not response.status:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                response.fail(BadResponse("the response head is too large"))
                self._excess = True
        elif self._body_came:
            self._body_came = False
            self._framing_bytes = 0
        else:
            self._framing_bytes += len(data)  # the parser keeps a trailer's line however long it gets
            if self._framing_bytes > self._limits.head_bytes and not self._message_done:
                response.fail(BadResponse("more framing than a body needs"))
                self._excess = True
        # The size of the next chunk may have begun: it is at the end of one only where that is the last that came.
        self._at_chunk = self._at_chunk and data.endswith(b"\r\n")
        if self._message_done:
            self._finish(response)
        elif self._excess:
            self.abort()
        else:
            response.news(self.loop)

    def eof_received(self) -> bool | None:
        return None  # closes the transport; connection_lost tells the response

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        response, self._response = self._response, None
        if response is not None and not response.complete:
            if self._until_close and response.status and exc is None:
                response.finish()
            else:
                response.fail(ConnectionLost(f"the engine closed the connection ({exc or 'end of stream'})"))
        self._on_closed(self)

    # httptools

    def on_message_begin(self) -> None:
        if self._message_done:
            self._excess = True  # more than one response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None and not self._response.status:  # trailers say nothing that is asked
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:
            self._informational = True
            return
        response = self._response
        if response is None or self._message_done:
            return
        framed = status in (204, 304)
        for name, value in headers:
            if name == b"content-length" or name == b"transfer-encoding":
                framed = True
            elif name == b"content-type":
                response.content_type = value
            elif name == b"content-encoding":
                response.content_encoding = value
        self._until_close = not framed
        response.headers = headers
        response.status = status

    def on_chunk_header(self) -> None:
        self._at_chunk = False

    def on_chunk_complete(self) -> None:
        self._at_chunk = True

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        response = self._response
        if response is None or self._discarding or self._message_done:
            return
        if response.add(body) > self._limits.buffer_bytes and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._informational:
            self._informational = False
            return
        self._message_done = True
        self._reusable = self._parser.should_keep_alive()

    def _finish(self, response: UpstreamResponse) -> None:
        self._response = None
        transport = self._transport
        response.finish()
        if (
            transport is None
            or self._excess
            or not self._reusable
            or transport.is_closing()
            or transport.get_write_buffer_size()  # answered before it had read the request
        ):
            self.abort()
            return
        self.resume()
        self.idle_since = self.loop.time()
        self._on_free(self)

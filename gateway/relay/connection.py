"""One keep-alive connection to an engine, and the response that is being read from it."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import cast

import httptools


class Phase(StrEnum):
    """What was being waited for when a deadline passed."""

    CONNECT = "connect"
    HEAD = "head"
    BODY = "body"


class UpstreamError(Exception):
    """An engine could not be reached, went away, or did not speak HTTP. The message is for logs."""


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, or every allowed one busy."""


class ConnectionLost(UpstreamError):
    """The connection ended before the response did."""


class DeadlinePassed(UpstreamError):
    """The engine did not do its next step in time."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        super().__init__(f"deadline passed while waiting for {phase}")


class BadResponse(UpstreamError):
    """What came is not HTTP/1.1, not what was asked for, or more than this client accepts. `said`: its beginning."""

    def __init__(self, message: str, *, said: bytes = b"") -> None:
        self.said = said[:200]
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on what is held of an engine's response, in bytes."""

    head_bytes: int = 64 * 1024  # of the head; and between two pieces of the body, and after the last (trailers)
    buffer_bytes: int = 64 * 1024  # unread body beyond which the socket is not read any more


class _Woken(Enum):
    """Why a wait for an engine ended."""

    NEWS = auto()  # bytes, the end, or a failure
    QUIET = auto()  # nothing for as long as was asked
    SINK = auto()  # the sink wants what it was given to be looked at


Sink = Callable[[bytes], float | None]
"""Takes bytes as they come; returns for how many seconds it waits for more, None to have the reader look."""


class UpstreamResponse:
    """One response: once `wait_head` returned True, `status` and `headers` are there; `read` pulls the body.

    Whoever holds one must end it with `close` or `release`, also after an error.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_deadline",
        "_error",
        "_listener",
        "_phase",
        "_sink",
        "_size",
        "_soft",
        "_waiter",
        "complete",
        "content_encoding",
        "content_type",
        "headers",
        "status",
    )

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.content_encoding = b""
        self.complete = False
        self._connection: Connection | None = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[_Woken] | None = None
        self._deadline = 0.0
        self._phase = Phase.HEAD
        self._soft = False
        self._sink: Sink | None = None
        self._listener: Callable[[], None] | None = None

    @property
    def failed(self) -> bool:
        """It will not be completed."""
        return self._error is not None

    @property
    def size(self) -> int:
        """Bytes of the body that wait to be read."""
        return self._size

    def listen(self, listener: Callable[[], None] | None, seconds: float = 0.0) -> None:
        """Have `listener` called, instead of waiting in `wait_head` or `read`, when something has come, when the
        response ends or fails, and when it has not by `seconds` from now (it has then failed). None: no longer.
        """
        self._listener = listener
        connection = self._connection
        if listener is not None and connection is not None:
            self._soft = False
            self._deadline = connection.loop.time() + seconds
            connection.watch(self._deadline)

    def peek(self) -> bytes:
        """What has come of the body; it is not taken away by this."""
        chunks = self._chunks
        if len(chunks) > 1:
            chunks[:] = [b"".join(chunks)]
        return chunks[0] if chunks else b""

    def header(self, name: bytes) -> bytes | None:
        """The first header of that (lower-case) name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def drained(self) -> bool:
        """Whether the whole body has been read."""
        return self.complete and not self._chunks

    async def wait_head(self, seconds: float, *, soft: bool = False) -> bool:
        """Return True once status and headers are there. Raises UpstreamError.

        With `soft`, returns False instead of raising DeadlinePassed, and may be called again.
        """
        again = False  # a head that comes byte by byte gets no more time for it
        while not self.status:
            if self._error is not None:
                raise self._error
            if await self._wait(seconds, soft, None, again=again) is _Woken.QUIET:
                return False
            again = True
        self._phase = Phase.BODY
        return True

    async def read(self, seconds: float, *, soft: bool = False, sink: Sink | None = None) -> bytes | None:
        """What has come of the body since the last call, b"" at its end.

        Raises DeadlinePassed after `seconds` without a byte, ConnectionLost or BadResponse; what had
        come before a failure is handed out first. With `soft`, returns None instead of raising DeadlinePassed.

        A `sink` is handed what comes at once, without a turn of the task that waits here: a third of the cost of
        an event. Returns None as soon as it returned None. What had come before the call is returned, not handed
        to it.
        """
        again = False
        while True:
            chunks = self._chunks
            if chunks:
                data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                chunks.clear()
                self._size = 0
                if self._connection is not None:
                    self._connection.resume()
                return data
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            if await self._wait(seconds, soft, sink, again=again) is not _Woken.NEWS:
                return None
            again = True  # framing alone is no byte of the body

    def close(self) -> None:
        """Done with it: the connection is closed unless the response had come whole."""
        self._listener = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def release(self, seconds: float) -> None:
        """Done with it, but the little that is missing may still come, so that the connection stays of use.

        It is closed when the end has not come after `seconds`.
        """
        if self._connection is not None:
            self._connection.discard(seconds)

    def fail(self, error: UpstreamError) -> None:
        """End the response with `error`; a pending read raises it."""
        if self._error is None and not self.complete:
            self._error = error
        self.wake()

    async def _wait(self, seconds: float, soft: bool, sink: Sink | None, *, again: bool) -> _Woken:
        connection = self._connection
        if connection is None:
            raise ConnectionLost("the response was closed")
        loop = connection.loop
        if not again:
            self._deadline = loop.time() + seconds
        self._waiter = waiter = loop.create_future()
        self._soft = soft
        self._sink = sink
        connection.watch(self._deadline)
        try:
            woken: _Woken = await waiter
            return woken
        finally:
            self._waiter = self._sink = None

    # What the connection calls.

    def wake(self, woken: _Woken = _Woken.NEWS) -> None:
        if self._listener is not None:
            self._listener()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(woken)

    def news(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bytes have been added: hand them to the sink, or wake whoever waits."""
        chunks = self._chunks
        if self._sink is None:
            self.wake()
        elif chunks:  # else it was the framing alone
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if self.hand(data, loop):
                chunks.clear()
                self._size = 0
                if self._connection is not None:
                    self._connection.resume()

    def hand(self, data: bytes, loop: asyncio.AbstractEventLoop) -> bool:
        """Hand bytes of the body to the sink; False where there is none, or its reader is about to look itself."""
        sink, waiter = self._sink, self._waiter
        if sink is None or waiter is None or waiter.done():
            return False
        seconds = sink(data)
        if seconds is not None:
            # Later than the timer, which looks again when it fires: no timer is set for an event.
            self._deadline = loop.time() + seconds
        elif not waiter.done():
            self._sink = None
            waiter.set_result(_Woken.SINK)
        return True

    def add(self, data: bytes) -> int:
        """Take a piece of the body; returns how many bytes are waiting to be read."""
        self._chunks.append(data)
        self._size += len(data)
        return self._size

    def check_deadline(self, now: float) -> float | None:
        """Fail if the deadline has passed; the time to look again if something is being waited for."""
        if self._waiter is None and self._listener is None:
            return None
        if now >= self._deadline - 0.001:
            if self._soft:
                self.wake(_Woken.QUIET)
            else:
                self.fail(DeadlinePassed(self._phase))
            return None
        return self._deadline

    def finish(self) -> None:
        """The whole body has come."""
        self.complete = True
        self._connection = None
        self.wake()


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

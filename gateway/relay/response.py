"""One response of an engine, as it is read: by waiting for it, by a sink, or by a listener without a task."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from gateway.relay.upstream_errors import ConnectionLost, DeadlinePassed, Phase, UpstreamError


class _Woken(Enum):
    """Why a wait for an engine ended."""

    NEWS = auto()  # bytes, the end, or a failure
    QUIET = auto()  # nothing for as long as was asked
    SINK = auto()  # the sink wants what it was given to be looked at


Sink = Callable[[bytes], float | None]
"""Takes bytes as they come; returns for how many seconds it waits for more, None to have the reader look."""


class Carrier(Protocol):
    """The connection that a response comes over; gateway.relay.connection.Connection."""

    loop: asyncio.AbstractEventLoop

    def watch(self, deadline: float) -> None:
        """See to it that the response's deadline is checked at loop time `deadline`."""

    def resume(self) -> None:
        """The consumer has read: take from the socket again."""

    def discard(self, seconds: float) -> None:
        """Throw away what still comes of the response, and close if its end has not come in time."""

    def abort(self) -> None:
        """Close at once, whatever is under way."""


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

    def __init__(self, connection: "Carrier") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.content_encoding = b""
        self.complete = False
        self._connection: Carrier | None = connection
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

"""One request and its response at our server: uvicorn's, made lean.

A response's head and first bytes are one write, and a client that leaves is told by a call.
"""

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class LeanCycle(RequestResponseCycle):
    """One request and its response. The head waits for the first bytes of the body: one write, one segment."""

    leaving: Callable[[], None] | None = None
    _head: bytes = b""
    _until_close = False  # HTTP/1.0 knows no chunks

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True  # given up by our side, and connection_lost is on its way
            return
        if message["type"] == "http.response.body":
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
        elif self.response_started:
            raise RuntimeError("a response has one head")
        else:
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._render_head(message["status"], message["headers"])

    def _render_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines = [STATUS_LINE[status]]
        self.chunked_encoding = True
        closing = False
        for name, value in (*self.default_headers, *headers):
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                self.chunked_encoding = False
                self.expected_content_length = int(value)
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
                closing = True
        if not self.keep_alive and not closing:
            lines.append(b"connection: close\r\n")
        if status in (204, 304):
            self.chunked_encoding = False
        elif self.chunked_encoding and self.scope["http_version"] == "1.0":
            self.chunked_encoding = False
            self._until_close = True
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if not self.response_started or self.response_complete:
            raise RuntimeError("a body belongs between a response's head and its end")
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            body = b""
            self.expected_content_length = 0
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        elif not self._until_close:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (not more and self.expected_content_length):
                raise RuntimeError("a response's body is as long as its head said")
        data = head + body if head else body
        if data:
            self.transport.write(data)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    @property
    def congested(self) -> bool:
        """The client has not yet taken what it was sent before."""
        return self.flow.write_paused

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole response at once, without a task."""
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
        else:
            self.response_started = True
            self._head = self._render_head(status, headers)
            self._send_body(body, more=False)
        self.on_response = _nothing  # as uvicorn does at the end of a task: no circle is left

    def write(self, data: bytes) -> bool:
        """Write bytes of a chunked body whose head has been sent; False once the client does not keep up."""
        if self.disconnected or self._head or not self.chunked_encoding:
            return self._write_otherwise(data)
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not self.flow.write_paused

    def _write_otherwise(self, data: bytes) -> bool:
        if not self.disconnected:
            self._send_body(data, more=True)
        return False  # a client that has left is noticed by whoever waits

    def on_leaving(self, call: Callable[[], None]) -> None:
        """Have `call` called when the client leaves before the response is complete; at once if it has."""
        if self.disconnected:
            call()
        else:
            self.leaving = call


def answering(cycle: RequestResponseCycle | None) -> bool:
    """Whether a response is under way; there is no cycle before the first request."""
    return cycle is not None and not cycle.response_complete


def _nothing() -> None:
    pass

"""A server that says what a test has it say, byte by byte, to each connection."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Script = Callable[[socket.socket, bytes], None]
"""Given the connection and the request's head: answers."""


class RawServer:
    """`requests` are the heads that were received, oldest first."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.ended = threading.Event()
        self._tls = tls
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError), raw:
            raw.settimeout(10)
            connection = self._tls.wrap_socket(raw, server_side=True) if self._tls else raw
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    head += piece
                self.requests.append(head)
                self.script(connection, head)


@contextlib.contextmanager
def raw_server(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    server = RawServer(script, tls=tls)
    try:
        yield server
    finally:
        server.close()


def answering(body: bytes, *, status: str = "200 OK", headers: str = "") -> Script:
    """A script that answers each request alike."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()

    def script(connection: socket.socket, _: bytes) -> None:
        connection.sendall(head + body)

    return script

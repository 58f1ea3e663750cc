"""A wire in front of an engine that writes down what passes, so that tests know what was really forwarded."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

_ID: Final = re.compile(rb"x-request-id: ([0-9a-f-]{36})\r\n")
_TAIL_BYTES: Final = 64  # more than an id's line, so that one cut by a read is still found


class Recorder:
    """Passes bytes to `port` on the loopback address and keeps the ids of all requests it passed."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.request_ids: list[str] = []
        self.sent = bytearray()
        """All bytes that went to the engine."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                engine = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, engine]
            self._start(self._pass_on, client, engine, True)
            self._start(self._pass_on, engine, client, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        tail = b""
        try:
            while data := source.recv(65536):
                if keep:
                    self.sent += data
                    seen = tail + data
                    found = list(_ID.finditer(seen))
                    self.request_ids += [match[1].decode() for match in found]
                    tail = seen[max(found[-1].end() if found else 0, len(seen) - _TAIL_BYTES) :]
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

"""A receiver of webhooks: a real HTTP server that answers as it is told and keeps what came."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Received:
    """One request. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # more than all senders at once: one too many would be tried again after seconds only


class Receiver:
    """`answers`: statuses for the next requests; when they are used up, 204. A redirect leads to /elsewhere.

    While `answering` is not set, requests are taken and not answered.
    """

    def __init__(self, *answers: int) -> None:
        self.received: list[Received] = []
        self.answers = list(answers)
        self.answering = threading.Event()
        self.answering.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                receiver.answering.wait(30)
                status = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def close(self) -> None:
        """Refuse connections from now on; closing twice changes nothing."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

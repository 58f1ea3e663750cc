"""An engine's health and models endpoints, in a thread of the test; its answers change when told to."""

import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self


class EngineStub:
    """Listens on a port of its own while the block runs."""

    def __init__(self, *models: str, key: str = "", base_path: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.models = list(models)
        self.healthy = True
        self.key = key
        self.base_path = base_path
        self.asked: list[str] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.asked.append(self.path)
                status, body = stub.answer(self.path, self.headers.get("authorization", ""))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            # The handshake belongs into the request's own thread: one that fails must not end the server's.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}{self.base_path}"

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if not self.healthy:
            return 503, b""
        if path == f"{self.base_path}/health":
            return 200, b""
        if path == f"{self.base_path}/v1/models":
            if self.key and authorization != f"Bearer {self.key}":
                return 401, b""
            return 200, json.dumps({"object": "list", "data": [{"id": name} for name in self.models]}).encode()
        return 404, b""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""The process of an engine that sleeps, see `sleeper`: it speaks vLLM's words, and needs the standard library alone.

Run as `python sleeper_process.py PORT NAME`. A request while it sleeps is answered with 500 and counted, as `/told`
says. `POST /be?busy=1&refuse=1` changes how it behaves.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class State:
    """What the process remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sleeping = False
        self.busy = 0
        self.refuse = 0
        self.tokens = 0
        self.asked_asleep = 0
        self.spoke: list[str] = []  # its cache: who spoke to it since it woke
        self.lock = threading.Lock()

    def get(self, path: str) -> tuple[int, Any]:
        match path:
            case "/health":
                return 200, ""
            case "/is_sleeping":
                return 200, {"is_sleeping": self.sleeping}
            case "/v1/models":
                return 200, {"object": "list", "data": [{"id": self.name}]}
            case "/metrics":
                return 200, (
                    f"vllm:num_requests_running {self.busy}\nvllm:num_requests_waiting 0\n"
                    f"vllm:prompt_tokens_total {self.tokens}\nvllm:generation_tokens_total {self.tokens}\n"
                )
            case "/told":
                return 200, {"asked_asleep": self.asked_asleep, "spoke": self.spoke}
        return 404, ""

    def post(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, Any]:
        match path:
            case "/sleep":
                if self.refuse:
                    return 404, ""
                self.sleeping, self.spoke = True, []
                return 200, ""
            case "/wake_up":
                self.sleeping = False
                return 200, ""
            case "/be":
                for name, values in query.items():
                    setattr(self, name, int(values[0]))
                return 200, ""
            case "/invocations":
                if self.sleeping:
                    self.asked_asleep += 1
                    return 500, ""
                self.tokens += 1
                self.spoke.append(json.loads(body).get("user", ""))
                return 200, {"spoke": self.spoke}
        return 404, ""


def serve(port: int, name: str) -> None:
    """Until the process is killed."""
    state = State(name)

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, told: Any) -> None:
            body = told.encode() if isinstance(told, str) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            with state.lock:
                told = state.get(urlsplit(self.path).path)
            self.answer(*told)

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            with state.lock:
                told = state.post(parts.path, parse_qs(parts.query), body)
            self.answer(*told)

        def log_message(self, format: str, *args: object) -> None:
            return None

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        sys.exit(error.errno)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])

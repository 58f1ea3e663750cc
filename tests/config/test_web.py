"""The web process as one application: sockets without an address, and cookies behind https."""

import os
import subprocess
import sys
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from config.environment import BASE_DIR
from config.web import build_application


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("/ws/nothing", b"http://localhost"),
        ("/agent/nothing", b"http://localhost"),
        ("/", b"http://localhost"),
        ("/ws/live", b"http://["),
        ("/ws/live", b"http://localhost:99999"),
        ("/ws/live", b"\xff"),
    ],
)
async def test_a_socket_to_or_from_nowhere_is_closed_without_a_failure(path: str, origin: bytes) -> None:
    async def no_http(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a socket is no request")

    headers = [(b"host", b"localhost"), (b"origin", origin)]
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers}
    communicator: Any = ApplicationCommunicator(build_application(no_http), scope)  # type: ignore[no-untyped-call]  # asgiref's
    await communicator.send_input({"type": "websocket.connect"})
    assert (await communicator.receive_output(timeout=10))["type"] == "websocket.close"
    await communicator.wait(10)


@pytest.mark.parametrize(("url", "secure"), [("https://gate.example", True), ("http://gate.example:8000", False)])
def test_cookies_stay_on_https_where_browsers_come_by_it(url: str, secure: bool) -> None:
    code = "import config.settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.LANGUAGE_COOKIE_SECURE)"
    environment = os.environ | {"GATEHOUSE_WEB_URL": url}
    done = subprocess.run([sys.executable, "-c", code], cwd=BASE_DIR, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(secure)] * 3, done.stderr

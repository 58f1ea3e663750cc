"""The web process as one application: sockets without an address, and cookies behind https."""

import os
import subprocess
import sys
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.testing import ApplicationCommunicator

import config.web
from config.environment import BASE_DIR
from config.web import Lifespan, build_application


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


async def test_what_fails_at_the_end_holds_up_no_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    runtime = AsyncMock()
    runtime.stop.side_effect = OSError("torn")

    def end(name: str) -> AsyncMock:
        return AsyncMock(side_effect=lambda: ended.append(name))

    monkeypatch.setattr(config.web, "build_web_runtime", lambda _: runtime)
    monkeypatch.setattr(config.web, "check_store_settings", lambda: None)
    monkeypatch.setattr(config.web, "close_shared_hub", end("hub"))
    monkeypatch.setattr(config.web, "close_shared_store", end("store"))
    send = AsyncMock()
    with pytest.raises(OSError, match="torn"):
        await Lifespan()({"type": "lifespan"}, AsyncMock(), send)
    assert ended == ["hub", "store"]
    send.assert_awaited_once_with({"type": "lifespan.startup.complete"})  # nobody is told that all ended well


@pytest.mark.parametrize(("url", "secure"), [("https://gate.example", True), ("http://gate.example:8000", False)])
def test_cookies_stay_on_https_where_browsers_come_by_it(url: str, secure: bool) -> None:
    code = "import config.settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.LANGUAGE_COOKIE_SECURE)"
    environment = os.environ | {"GATEHOUSE_WEB_URL": url}
    done = subprocess.run([sys.executable, "-c", code], cwd=BASE_DIR, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(secure)] * 3, done.stderr

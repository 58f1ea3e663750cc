"""A real Chromium against the real web application; skipped, saying so, where either is missing."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import uvicorn
from pytest_django import Settings

from tests.kept import Kept
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEADLINE_MS: Final = 30_000
# Pages are usable before their scripts run: a link that is clicked then leads to a page, not to a dialog. So a page is
# told to be covered until it is loaded, which actions wait for.
SAYS_LOADED: Final = "addEventListener('load', () => document.documentElement.setAttribute('data-loaded', ''))"
NOT_LOADED: Final = "html:not([data-loaded])"
FOLDER: Final = Path(__file__).parent
Refusals = bool | Callable[[], bool]
"""Whether pages will meet some; or what says so each time, where they may only from a moment on."""

_browser: Final[Kept["Browser"]] = Kept(FOLDER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Chromium ends with the last test here: Playwright's loop runs in a thread where others want their own."""
    try:
        return (yield)
    finally:
        _browser.close_before(nextitem)


def is_complaint(message: "ConsoleMessage", *, refusals: Refusals) -> bool:
    """Chromium reports every 4xx answer; a form that is sent back (422) is one that the page expects."""
    expected = (
        "status of 422",
        *(
            ("status of 403", "status of 404", "response code: 403", "ERR_FAILED", "Failed to fetch")
            if (refusals() if callable(refusals) else refusals)
            else ()
        ),
    )
    return message.type in ("error", "warning") and not any(text in message.text for text in expected)


class Web:
    """The web application under uvicorn in a thread of this process, so that tests reach into it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        # The server closes its own. Who comes while it is stopped waits: Chromium reports each that is refused.
        listener = self._listener.dup()
        config = uvicorn.Config(
            "config.asgi:application",
            lifespan="off",  # pages need no connections to engines
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, "the web server did not start", deadline_seconds=30)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=15)

    def close(self) -> None:
        self.stop()
        self._listener.close()


@contextmanager
def _chromium() -> "Iterator[Browser]":
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright_api.sync_playwright() as playwright, pytest.MonkeyPatch.context() as patch:
        # Playwright's synchronous API runs a loop in this thread; Django would then refuse every query here.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=4 * DEADLINE_MS)
        yield browser
        browser.close()


@pytest.fixture
def chromium(request: pytest.FixtureRequest) -> "Browser":
    """One for all of these tests that follow each other."""
    return _browser.get(request, _chromium)


@pytest.fixture
def web(transactional_db: None, settings: Settings) -> Iterator[Web]:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    running = Web()
    running.start()
    yield running
    running.close()


@pytest.fixture
def open_page(chromium: "Browser", web: Web) -> "Iterator[Callable[..., Page]]":
    """A page in a context of its own: `open_page(theme=, language=, width=)`; `refusals`: see Refusals.

    At the end, no page may have said anything on its console or asked another host for anything.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def make(
        *, theme: str = "light", language: str = "en", width: int = 1600, height: int = 1000, refusals: Refusals = False
    ) -> "Page":
        context = chromium.new_context(base_url=web.url, viewport={"width": width, "height": height})
        context.add_cookies([{"name": "django_language", "value": language, "url": web.url}])
        context.add_init_script(f"localStorage.setItem('gatehouse.theme', '{theme}')")
        context.add_init_script(SAYS_LOADED)
        context.set_default_timeout(DEADLINE_MS)
        contexts.append(context)
        page = context.new_page()
        page.add_locator_handler(page.locator(NOT_LOADED), lambda: None)
        page.on("console", lambda m: complaints.append(m.text) if is_complaint(m, refusals=refusals) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda r: None if r.url.startswith((web.url, "data:", "blob:")) else complaints.append(r.url)
        )
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def shoot() -> "Callable[[Page, str], None]":
    """Keeps a screenshot where GATEHOUSE_SHOTS names a folder."""
    folder = os.environ.get("GATEHOUSE_SHOTS")

    def save(page: "Page", name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return save

"""Engines in Chromium: the matrix, the switch that asks first, and attaching one by its address."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dashboard.views.console import engines as engines_page
from gpupool.engines.plugins import BrokenPlugin
from gpupool.models import EngineSwitch, Instance
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in
from tests.dashboard.people import person, pool
from tests.gpupool.engine_stub import EngineStub

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
DESCRIBED = "e => e.getAttribute('aria-describedby').split(' ').map((id) => document.getElementById(id).textContent)"


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_the_matrix_and_broken_plugins(
    open_page: OpenPage, shoot: Shoot, monkeypatch: pytest.MonkeyPatch, theme: str, language: str
) -> None:
    broken = BrokenPlugin("warp", "warp-drive", "warp_room:ROOM cannot be imported: ModuleNotFoundError: No module.")
    monkeypatch.setattr(engines_page, "broken_plugins", lambda: (broken,))
    page = open_page(theme=theme, language=language)
    log_in(page, "olga", then="/console/engines/")
    page.get_by_text("warp-drive").wait_for()
    shoot(page, f"engines-{theme}-{language}")
    assert violations(page) == []


def test_an_engine_is_switched_off_and_on_by_keyboard(open_page: OpenPage, shoot: Shoot) -> None:
    pool()
    page = open_page()
    log_in(page, "olga", then="/console/engines/")
    page.get_by_role("link", name="Switch vLLM off", exact=True).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("1 instance leaves the routing").wait_for()
    shoot(page, "engine-switch-off")
    assert violations(page) == []
    assert dialog.get_by_role("link", name="Cancel").evaluate("e => e === document.activeElement")
    described = dialog.evaluate(DESCRIBED)  # told with the title
    assert [text.split(" ", 3)[:3] for text in described] == [
        ["1", "instance", "leaves"],
        ["No", "other", "engine"],
        ["While", "it", "is"],
    ]
    dialog.locator("#announcements").wait_for(state="attached")  # there before anything is said, here and afterwards
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.locator("body > #announcements").wait_for(state="attached")
    assert not EngineSwitch.objects.exists()
    page.get_by_role("link", name="Switch vLLM off", exact=True).click()
    page.get_by_role("button", name="Switch off").click()
    page.get_by_text("vLLM is switched off.").wait_for()
    shoot(page, "engines-one-off")
    page.goto("/console/overview/")
    page.get_by_text("The engine vLLM is switched off.").wait_for()
    page.goto("/console/engines/")
    page.get_by_role("link", name="Switch vLLM on", exact=True).click()
    page.get_by_text("1 instance comes back").wait_for()
    page.get_by_role("button", name="Switch on").click()
    page.get_by_text("vLLM is switched on.").wait_for()


def test_an_engine_is_attached_from_the_list_of_instances(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "olga", then="/console/instances/")
    page.get_by_role("link", name="Attach engine").first.click()  # the empty list offers it too
    dialog = page.get_by_role("dialog")
    address = dialog.get_by_label("Address")
    address.wait_for()
    assert address.evaluate("e => e === document.activeElement")
    page.keyboard.type("ftp://host")
    dialog.get_by_label("Engine", exact=True).select_option("vllm")
    dialog.get_by_label("Model", exact=True).fill("llama")
    page.keyboard.press("Enter")
    dialog.get_by_text("An engine's address looks like").wait_for()
    shoot(page, "attach-refused")
    assert violations(page) == []
    assert dialog.get_by_label("Model", exact=True).input_value() == "llama"
    with EngineStub("llama") as engine:
        dialog.get_by_label("Address").fill(engine.url)
        page.keyboard.press("Enter")
        dialog.get_by_text("It answers and serves llama").wait_for()
    shoot(page, "attached")
    assert violations(page) == []
    assert Instance.objects.get().state == "ready"
    page.keyboard.press("Escape")  # the list behind the dialog then shows it
    page.get_by_role("cell", name="llama").first.wait_for()


def test_an_engine_that_does_not_answer_is_said_to_be_waited_for(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(theme="dark", language="zh-hans")
    log_in(page, "olga", then="/console/instances/attach/")
    page.locator("#id_url").fill("https://127.0.0.1:9")
    page.locator("#id_model").fill("llama")
    shoot(page, "attach-form-dark-zh-hans")
    page.keyboard.press("Enter")
    page.get_by_text("它还不接收请求").wait_for()
    shoot(page, "attach-waits-dark-zh-hans")
    assert Instance.objects.get().tls

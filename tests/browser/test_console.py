"""The console in Chromium: logging in, live figures, themes and languages."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import pytest
from django.db import OperationalError

import dashboard.live.feeds.fleet
from gpupool.models import Instance
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import User
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations_in_both_themes
from tests.browser.walk import log_in, log_in_by_form, wait_for_pill
from tests.dashboard.people import person, pool, tenant

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="superuser")


def test_wrong_password_is_said_and_the_right_one_leads_on(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    page.goto("/console/overview/")
    page.locator("#id_username:focus").wait_for()
    page.keyboard.type("olga@example.com")
    page.keyboard.press("Tab")
    page.keyboard.type("not-the-password")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    shoot(page, "login-error")
    page.locator("#id_password").fill("correct-horse-battery")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview", level=1).wait_for()


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_overview_in_both_themes_and_languages(open_page: OpenPage, shoot: Shoot, theme: str, language: str) -> None:
    pool()
    page = open_page(theme=theme, language=language)
    log_in(page, "olga")
    wait_for_pill(page, "live")
    assert page.locator("html").get_attribute("data-bs-theme") == theme
    assert page.locator("h1").inner_text() == {"en": "Overview", "zh-hans": "总览"}[language]
    shoot(page, f"overview-{theme}-{language}")


def test_changes_arrive_without_a_reload(open_page: OpenPage) -> None:
    made = pool(state="loading")
    page = open_page()
    log_in(page, "olga")
    wait_for_pill(page, "live")
    row = page.locator(f'[data-row="{made.instance.pk}"]')
    assert row.locator(".pill").inner_text() == "Loading"
    Instance.objects.update(state="ready")
    row.locator('.pill[data-value="ready"]').wait_for()
    added = Instance.objects.create(version=made.version, engine="vllm", state="failed", reason="out of memory")
    page.locator(f'[data-row="{added.pk}"]').get_by_text("out of memory").wait_for()
    Instance.objects.all().delete()
    page.get_by_text("Nothing runs yet").wait_for()


def test_lost_database_makes_the_page_stale_and_says_since_when(
    open_page: OpenPage, shoot: Shoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_: object) -> NoReturn:
        raise OperationalError("the database is away")

    pool()
    page = open_page()
    log_in(page, "olga")
    wait_for_pill(page, "live")
    monkeypatch.setattr(dashboard.live.feeds.fleet, "build_console_frame", away)
    page.get_by_text("The database does not answer.").wait_for()  # without a frame for some seconds it is stale, too
    wait_for_pill(page, "stale")
    assert page.locator("#live").inner_text().startswith("Stale · as of ")
    shoot(page, "overview-stale")
    assert violations_in_both_themes(page) == []  # old figures are to be read, too
    monkeypatch.undo()
    wait_for_pill(page, "live")


def test_restarted_server_is_found_again(open_page: OpenPage, web: Web) -> None:
    page = open_page()
    log_in(page, "olga")
    wait_for_pill(page, "live")
    web.stop()
    wait_for_pill(page, "reconnecting")
    web.start()
    wait_for_pill(page, "live")


def test_lost_role_is_told_and_not_tried_again(open_page: OpenPage) -> None:
    person("otto", platform_role="superuser")
    page = open_page()
    log_in(page, "olga")
    wait_for_pill(page, "live")
    services.change_person(User.objects.get(email="olga@example.com").pk, platform_role="", actor=SYSTEM)
    wait_for_pill(page, "denied")
    page.get_by_text("You may no longer see this").wait_for()
    assert not page.get_by_text("Ready instances").is_visible()


def test_theme_and_language_are_switched_and_remembered(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "olga")
    page.get_by_label("Theme", exact=True).click()
    page.get_by_role("button", name="Dark").click()
    assert page.locator("html").get_attribute("data-bs-theme") == "dark"
    page.get_by_label("Language", exact=True).click()
    page.get_by_role("button", name="简体中文").click()
    page.get_by_role("heading", name="总览", level=1).wait_for()


def test_operator_stops_an_instance(open_page: OpenPage, shoot: Shoot) -> None:
    made = pool()
    page = open_page()
    log_in(page, "olga", then="/console/instances/")
    page.get_by_role("link", name="Stop qwen3-8b").click()
    page.get_by_role("dialog").get_by_text("Running ones finish").wait_for()
    shoot(page, "instance-stop")
    page.get_by_role("button", name="Stop instance").click()
    page.get_by_text("is stopping").wait_for()
    assert Instance.objects.get(pk=made.instance.pk).desire == "stopped"


def test_tenants_and_empty_states(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(theme="dark")
    log_in(page, "olga", then="/console/tenants/")
    page.get_by_text("No tenants yet").wait_for()
    tenant("acme")
    page.goto("/console/tenants/?q=acm")
    page.get_by_role("link", name="Acme").wait_for()
    shoot(page, "tenants-dark")


def test_keyboard_reaches_the_content_first_closes_menus_and_walks_through_lists(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "olga")
    page.goto("/console/instances/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.locator("#main:focus").wait_for()
    theme = page.get_by_label("Theme", exact=True)
    theme.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="As the system").wait_for()
    page.keyboard.press("Escape")
    assert not page.get_by_role("button", name="As the system").is_visible()
    page.keyboard.press("Enter")
    page.get_by_label("Simulated").focus()
    assert not page.get_by_role("button", name="As the system").is_visible()
    page.keyboard.press("ArrowDown")  # on its way to the next
    page.keyboard.press("s")
    page.keyboard.press("Enter")
    page.wait_for_url("**simulated=yes*")
    shown = page.get_by_label("Simulated")
    shown.dispatch_event("keydown", {"key": "ArrowDown"})  # which opens it on macOS
    page.evaluate("new Promise((done) => setTimeout(done))")  # what is chosen there comes in a later turn
    shown.select_option("no")
    page.wait_for_url("**simulated=no*")


def test_log_out_is_in_the_menu_of_the_person(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in_by_form(page, "olga", then="/console/instances/")
    page.locator(".who summary").click()
    page.get_by_text("olga@example.com").wait_for()
    shoot(page, "menu-of-the-person")
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Log in").wait_for()
    page.goto("/console/instances/")
    page.get_by_role("heading", name="Log in").wait_for()

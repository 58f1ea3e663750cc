"""Every page: no WCAG violation that axe finds, usable at 390 pixels, in both themes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tenants.models import TenantRole
from tests.browser.conftest import Web
from tests.browser.pages import CONSOLE, PORTAL
from tests.browser.walk import log_in
from tests.dashboard.people import minutes_ago, person, pool, tenant, usage

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]

WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
# As the theme's menu does it, charts drawn anew with it; the menu itself would close what is looked at.
SWITCH = """theme => {
    document.documentElement.setAttribute("data-bs-theme", theme);
    document.dispatchEvent(new CustomEvent("gatehouse:theme"));
    for (const one of document.getAnimations()) if (one instanceof CSSTransition) one.finish();
}"""


@pytest.fixture(autouse=True)
def _people(web: Web) -> None:
    person("olga", platform_role="operator")
    acme = tenant("acme", ada=TenantRole.OWNER)
    tenant("empty", ada=TenantRole.OWNER)
    pool()
    usage(acme, at=minutes_ago(3))


def violations(page: "Page", rules: dict[str, Any] = WCAG) -> list[str]:
    """What axe finds on the page: rule, and the elements that break it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found: dict[str, Any] = axe.run(page, options=rules).response
    return [
        f"{page.url} {one['id']} ({one['impact']}): {[node['target'] for node in one['nodes']]}"
        for one in found["violations"]
    ]


def violations_in_both_themes(page: "Page") -> list[str]:
    """All rules in the light theme; then, on the same page made dark, those that look at colours."""
    found = violations(page)
    page.evaluate(SWITCH, "dark")
    found += [f"dark: {one}" for one in violations(page, COLOURS)]
    page.evaluate(SWITCH, "light")
    return found


def test_no_page_breaks_wcag(open_page: OpenPage) -> None:
    visitor = open_page()
    visitor.goto("/login/")
    found = violations_in_both_themes(visitor)
    for name, pages in (("olga", CONSOLE), ("ada", PORTAL)):
        page = open_page()
        log_in(page, name)
        for path in pages:
            page.goto(path)
            page.locator("h1, h2").first.wait_for()
            found += violations_in_both_themes(page)
    assert found == []


def test_dialogs_and_menus_break_no_wcag_either(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/keys/")
    page.get_by_role("link", name="New key").click()
    page.get_by_role("dialog").get_by_label("Name").wait_for()
    found = violations_in_both_themes(page)
    page.get_by_role("dialog").get_by_label("Name").fill("a key")
    page.get_by_role("button", name="Make key").click()
    page.locator("#new-secret").wait_for()
    found += violations_in_both_themes(page)
    page.keyboard.press("Escape")
    for action, button in (
        ("Revoke a key", "Revoke key"),
        ("Rotate a key", "Make new key"),
        ("It leaked: a key", "Revoke as leaked"),
    ):
        page.get_by_role("link", name=action).click()
        page.get_by_role("button", name=button).wait_for()
        found += violations_in_both_themes(page)
        page.keyboard.press("Escape")
    page.get_by_label("Switch tenant").click()
    page.get_by_label("Theme", exact=True).click()
    found += violations_in_both_themes(page)
    assert found == []


def test_every_page_is_usable_on_a_narrow_screen(open_page: OpenPage, shoot: Shoot) -> None:
    for name, pages in (("olga", CONSOLE), ("ada", PORTAL)):
        page = open_page(width=390, height=844)
        log_in(page, name)
        for path in pages:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            shoot(page, "narrow-" + path.strip("/").replace("/", "-").split("?")[0])
        page.get_by_label("Navigation", exact=True).click()
        page.locator(".side nav a").first.wait_for()
        shoot(page, f"narrow-navigation-{name}")
        page.keyboard.press("Escape")
        page.locator(".side nav a").first.wait_for(state="hidden")

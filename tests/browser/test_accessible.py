"""Every page: no WCAG violation that axe finds, usable at 390 pixels, in both themes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tenants.models import Delivery, Notice, TenantRole, Webhook
from tests.browser.conftest import Web
from tests.browser.pages import CONSOLE, HOOK, PORTAL
from tests.browser.walk import log_in
from tests.dashboard.people import minutes_ago, person, pool, tenant, usage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]

WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
NARROW_PIXELS: Final = 390
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
    Webhook.objects.create(pk=HOOK, url=f"https://hooks.example.com/{'long-' * 20}", failing_since=minutes_ago(3))
    notice = Notice.objects.create(kind="objective_burning", dedupe_key="1")
    Delivery.objects.create(notice=notice, channel="webhook", webhook_id=HOOK, last_error="It answered 500.")


def violations(page: "Page", rules: dict[str, Any] = WCAG) -> list[str]:
    """What axe finds on the page: rule, and the elements that break it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.wait_for_load_state()  # what a click has led to shows its beginning before its end is there
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


@contextmanager
def narrowed(page: "Page") -> Iterator[None]:
    """The same page on a narrow screen, where nothing sticks out."""
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": NARROW_PIXELS, "height": 844})
    wait_until(
        lambda: page.evaluate("document.documentElement.scrollWidth") <= NARROW_PIXELS,
        f"{page.url} fits a narrow screen",
    )
    yield
    page.set_viewport_size(before)


def test_the_page_of_logging_in_breaks_no_wcag(open_page: OpenPage) -> None:
    page = open_page()
    page.goto("/login/")
    assert violations_in_both_themes(page) == []


# In parts, so that no test takes minutes.
@pytest.mark.parametrize(
    ("name", "pages"),
    [*(("olga", CONSOLE[part::3]) for part in range(3)), ("ada", PORTAL)],
    ids=["console-1", "console-2", "console-3", "portal"],
)
def test_no_page_breaks_wcag_or_needs_a_wide_screen(
    open_page: OpenPage, shoot: Shoot, name: str, pages: list[str]
) -> None:
    page, found = open_page(), []
    log_in(page, name)
    for path in pages:
        page.goto(path)
        page.locator("h1, h2").first.wait_for()
        found += violations_in_both_themes(page)
        with narrowed(page):
            shoot(page, "narrow-" + path.strip("/").replace("/", "-").split("?")[0])
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


@pytest.mark.parametrize(("name", "path"), [("olga", "/console/overview/"), ("ada", "/t/acme/usage/?range=1h")])
def test_a_page_is_usable_that_was_opened_on_a_narrow_screen(
    open_page: OpenPage, shoot: Shoot, name: str, path: str
) -> None:
    page = open_page(width=NARROW_PIXELS, height=844)
    log_in(page, name, then=path)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW_PIXELS
    page.get_by_label("Navigation", exact=True).click()
    page.locator(".side nav a").first.wait_for()
    shoot(page, f"narrow-navigation-{name}")
    page.keyboard.press("Escape")
    page.locator(".side nav a").first.wait_for(state="hidden")

"""The command palette by keyboard alone, and filters that a person keeps."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from tenants.models import TenantRole
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in
from tests.dashboard.people import person, pool, tenant
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _people(web: Web) -> None:
    person("olga", platform_role="operator")
    tenant("acme", ada=TenantRole.OWNER)
    pool()


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_a_page_and_a_node_are_reached_without_a_mouse(
    open_page: OpenPage, shoot: Shoot, theme: str, language: str
) -> None:
    page = open_page(theme=theme, language=language)
    log_in(page, "olga", then="/console/tenants/")
    page.keyboard.press("Control+k")
    page.locator("#palette input").fill("node-1")
    page.get_by_role("option").filter(has_text="node-1").wait_for()
    shoot(page, f"palette-{theme}")
    assert violations(page) == []
    told = page.locator("#palette").aria_snapshot()  # what is read out
    assert "[expanded]: node-1" in told
    assert 'option "node-1" [selected]' in told
    assert {"en": "status: 1 found", "zh-hans": "status: 找到 1 个"}[language] in told
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/nodes/*/")
    page.locator(".who summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # into the menu, which is not lost
    page.keyboard.press("/")
    page.locator("#palette input").fill("zzzz")
    nothing = {"en": "Nothing is called so.", "zh-hans": "没有找到匹配的名称。"}[language]
    page.locator("#palette [role=status]", has_text=nothing).wait_for()
    assert page.locator("#palette input").get_attribute("aria-expanded") == "false"
    page.keyboard.press("Escape")
    page.locator("#palette").wait_for(state="hidden")
    assert page.locator(".who a[href]:focus").is_visible()


def test_a_filter_is_kept_under_a_name_and_found_again(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "olga", then="/console/tenants/?q=ac")
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Name of the view").fill("Ours")
    page.get_by_role("button", name="Save view").click()
    page.get_by_text("The view “Ours” is saved.").wait_for()
    page.goto("/console/tenants/")
    page.get_by_text("Views", exact=True).click()
    shoot(page, "saved-views")
    page.get_by_role("link", name="Ours").click()
    page.wait_for_url("**/console/tenants/?q=ac")
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Delete the view “Ours”").click()
    page.get_by_text("The view “Ours” is deleted.").wait_for()


def test_an_answer_to_what_was_sought_before_is_not_followed(open_page: OpenPage) -> None:
    page = open_page()
    page.clock.install()
    log_in(page, "olga", then="/console/tenants/")
    late: list[Route] = []
    page.route("**/palette/?q=", lambda route: late.append(route))
    page.clock.pause_at(timezone.now() + timedelta(minutes=1))  # it waits for more to be typed
    page.keyboard.press("Control+k")
    page.locator("#palette input").fill("audit")
    wait_until(lambda: bool(page.evaluate("true") and late), "it does not ask when it is opened")
    with page.expect_request_finished():
        late.pop().continue_()
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/audit/")


def test_enter_before_the_answer_goes_where_the_answer_leads_and_the_readers_own_zone_and_dates_are_taken(
    open_page: OpenPage,
) -> None:
    page = open_page()
    log_in(page, "olga", then="/console/overview/")
    assert page.locator("[data-palette] kbd").inner_text() == "Ctrl K"
    page.keyboard.press("Control+k")
    page.get_by_role("option").first.wait_for()
    page.keyboard.insert_text("audit")
    page.keyboard.press("Enter")  # the pages of before are listed still
    page.wait_for_url("**/console/audit/")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    page.goto("/console/audit/?q=x&range=7d")
    page.get_by_role("link", name="Asia/Tokyo").click()
    page.wait_for_url("**/console/audit/?q=x&range=7d&zone=Asia%2FTokyo")
    page.get_by_text("times in Asia/Tokyo").first.wait_for()
    page.get_by_text("Dates", exact=True).click()
    page.get_by_label("From", exact=True).fill("2026-11-30T10:00")
    end = page.get_by_label("To", exact=True)
    end.fill("2026-11-30T10:00")
    end.press("Enter")  # no time at all: the browser says so, and leads there
    assert end.evaluate("e => e.validity.rangeUnderflow && e === document.activeElement")
    end.fill("2026-11-30T10:01")
    end.press("Enter")
    page.wait_for_url("**from=2026-11-30T10%3A00&to=2026-11-30T10%3A01")


def test_dates_within_one_minute_are_sent_back_as_they_are(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "olga", then="/console/audit/?from=2026-11-30T10:00:05Z&to=2026-11-30T10:00:41Z&zone=UTC")
    page.get_by_text("2026-11-30 10:00:05 – 10:00:41", exact=True).click()
    assert page.locator("form.dates").evaluate("form => form.checkValidity()")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**from=2026-11-30T10%3A00%3A05&to=2026-11-30T10%3A00%3A41")
    page.get_by_text("2026-11-30 10:00:05 – 10:00:41", exact=True).click()
    page.get_by_label("To", exact=True).fill("2026-11-30T10:00:05")
    assert page.get_by_label("To", exact=True).evaluate("e => e.validity.rangeUnderflow")

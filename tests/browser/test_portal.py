"""The portal in Chromium: keys and usage."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.utils import timezone

from dashboard.views.portal import keys as keys_page
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import (
    ApiKey,
    Tenant,
    TenantDay,
    TenantHour,
    TenantRole,
    TenantState,
    UsageDay,
    UsageHour,
    UsageMinute,
)
from tests.browser.conftest import Web
from tests.browser.walk import log_in
from tests.dashboard.people import minutes_ago, pool, tenant, usage
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
ENDED = "document.addEventListener('htmx:finally:request', () => done(), { once: true });"


@pytest.fixture(autouse=True)
def _acme(web: Web) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER, vic=TenantRole.VIEWER)
    pool()
    for minute in range(1, 50, 3):
        usage(acme, at=minutes_ago(minute), model=f"model-{minute % 4}", tokens=1000 * minute)


def test_key_is_made_shown_once_and_revoked(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    page.clock.install()
    log_in(page, "ada", then="/t/acme/keys/")
    page.get_by_role("link", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").wait_for()
    shoot(page, "key-new")
    dialog.get_by_role("button", name="Make key").click()
    dialog.get_by_text("This field is required.").wait_for()
    dialog.get_by_label("Name").fill("search-prod")
    dialog.get_by_label("qwen3-8b").check()
    dialog.get_by_role("button", name="Make key").click()
    secret = dialog.get_by_role("textbox", name="API key").input_value()
    assert secret.startswith("sk-gh-")
    assert len(secret) > 40
    shoot(page, "key-created")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.clock.pause_at(timezone.now() + timedelta(minutes=1))  # it is told for a moment only
    dialog.get_by_role("button", name="Copy").click()
    page.locator(".copied").wait_for()
    page.clock.resume()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.keyboard.press("Escape")
    page.get_by_text("search-prod").wait_for()
    assert secret not in page.content()
    key = ApiKey.objects.get(name="search-prod")
    assert key.allowed_models == ["qwen3-8b"]
    page.get_by_role("link", name="Revoke search-prod").click()
    dialog.get_by_text("is answered with 401").wait_for()
    shoot(page, "key-revoke")
    dialog.get_by_role("link", name="Keep it").click()
    assert not dialog.is_visible()
    page.get_by_role("link", name="Revoke search-prod").click()
    dialog.get_by_role("button", name="Revoke key").click()
    page.get_by_text("is revoked").wait_for()
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_key_is_rotated_and_the_old_one_told_to_have_leaked(open_page: OpenPage, shoot: Shoot) -> None:
    services.create_api_key(Tenant.objects.get(slug="acme"), name="search-prod", actor=SYSTEM)
    page = open_page()
    log_in(page, "ada", then="/t/acme/keys/")
    shoot(page, "keys-actions")
    page.get_by_role("link", name="Rotate search-prod").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("The old key works").wait_for()
    shoot(page, "key-rotate")
    dialog.get_by_label("The old key works").select_option("For 7 days")
    dialog.get_by_role("button", name="Make new key").click()
    secret = dialog.get_by_role("textbox", name="API key").input_value()
    dialog.get_by_text("works until").wait_for()
    shoot(page, "key-rotated")
    page.keyboard.press("Escape")
    page.get_by_text("Rotated", exact=True).wait_for()
    assert secret not in page.content()
    old = ApiKey.objects.exclude(replaced_by=None).get()
    page.locator(f'a[href$="{old.pk}/leaked/"]').click()
    dialog.get_by_text("listed as leaked").wait_for()
    shoot(page, "key-leaked")
    dialog.get_by_role("button", name="Revoke as leaked").click()
    page.get_by_text("is revoked and listed as leaked").wait_for()
    old.refresh_from_db()
    assert old.compromised_at is not None


def test_viewer_is_offered_no_keys(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "vic", then="/t/acme/keys/")
    page.get_by_text("Your role may look at keys").wait_for()
    assert page.get_by_role("link", name="New key").count() == 0
    assert page.get_by_text("Revoke", exact=True).count() == 0


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_usage_chart_is_drawn_and_follows_the_theme(
    open_page: OpenPage, shoot: Shoot, theme: str, language: str
) -> None:
    page = open_page(theme=theme, language=language)
    log_in(page, "ada", then="/t/acme/usage/?range=1h")
    page.locator("#usage-chart .point").first.wait_for(state="attached")
    assert page.locator("#usage-chart .trace.bars").count() == 4
    shoot(page, f"usage-{theme}-{language}")
    fill = "getComputedStyle(document.querySelector('#usage-chart .point path')).fill"
    before = page.evaluate(fill)
    page.get_by_label("主题" if language == "zh-hans" else "Theme", exact=True).click()
    page.locator(f'[data-set-theme="{"light" if theme == "dark" else "dark"}"]').click()
    wait_until(lambda: page.evaluate(fill) != before, "the chart keeps the old theme's colours")


def test_range_stands_in_the_address(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/usage/")
    page.get_by_role("link", name="7 d").click()
    page.wait_for_url("**/usage/?range=7d")
    assert page.get_by_role("link", name="7 d").get_attribute("aria-current") == "true"
    page.get_by_text("Show as a table").click()
    assert page.get_by_role("region", name="Tokens by model").locator("tbody tr").count() == 56


def test_quick_start_switches_examples_by_keyboard(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "ada")
    shoot(page, "quick-start")
    page.get_by_role("tab", name="curl").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#snippet-python").is_visible()
    assert not page.locator("#snippet-curl").is_visible()


def test_a_dialog_keeps_the_focus_where_it_is_when_the_page_behind_it_changes(open_page: OpenPage) -> None:
    page = open_page()
    page.clock.install()
    log_in(page, "ada", then="/t/acme/")
    page.get_by_role("link", name="New key").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Name").evaluate("e => e === document.activeElement")
    dialog.get_by_label("qwen3-8b").focus()
    page.evaluate("document.getElementById('first-request').dataset.before = ''")
    page.clock.fast_forward(3_000)
    page.locator("#first-request:not([data-before])").wait_for()
    assert dialog.get_by_label("qwen3-8b").evaluate("e => e === document.activeElement")


def test_what_a_page_asks_for_by_itself_fails_once_and_a_press_each_time(open_page: OpenPage) -> None:
    page = open_page(refusals=True)
    page.add_init_script("window.setInterval = () => 0;")  # it asks when it is told to
    log_in(page, "ada", then="/t/acme/")
    mark, toast = page.locator(".head [data-stale-mark][role=status]"), page.locator(".gh-toast")
    assert mark.inner_text() == ""  # there before anything is said

    def told(of: str) -> bool:
        """Whether a toast tells of it; the next one is another."""
        page.locator("#first-request[data-htmx-powered]").wait_for()
        page.evaluate(f"() => new Promise((done) => {{ {ENDED} {of} }})")
        said = toast.is_visible()
        page.evaluate("document.getElementById('announcements').className = 'sr'")
        return said

    ask = "document.getElementById('first-request').dispatchEvent(new CustomEvent('every'));"
    press = "document.querySelector('[hx-get$=\"/keys/new/\"]').click();"
    page.route("**/t/acme/first/", lambda route: route.abort())
    page.route("**/keys/new/", lambda route: route.abort())
    assert [told(ask), told(press), told(ask), told(press)] == [False, True, False, True]
    assert mark.inner_text() == "Reconnecting"  # said as long as it lasts
    page.unroute("**/t/acme/first/")
    assert not told(ask)
    assert mark.inner_text() == ""
    page.route("**/t/acme/first/", lambda route: route.fulfill(status=404))
    assert [told(ask), told(ask)] == [True, False]
    page.unroute("**/t/acme/first/")
    page.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    page.evaluate(ask)  # nobody loses what they were at: the login leads back here
    page.wait_for_url("**/login/?next=/t/acme/")


def test_tenant_is_switched(open_page: OpenPage) -> None:
    tenant("bank", ada=TenantRole.VIEWER)
    page = open_page()
    log_in(page, "ada", then="/t/acme/")
    page.get_by_label("Switch tenant").click()
    page.get_by_role("link", name="Bank").click()
    page.wait_for_url("**/t/bank/")


def test_dialog_of_someone_logged_out_leads_to_the_login(open_page: OpenPage) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/keys/")
    page.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    page.get_by_role("link", name="New key").click()
    page.wait_for_url("**/login/?next=/t/acme/keys/new/")


def test_keys_are_paged_and_found(open_page: OpenPage, shoot: Shoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_page, "TABLE", replace(keys_page.TABLE, page_size=10))
    page = open_page()
    log_in(page, "ada", then="/t/acme/keys/")
    rows = page.locator("table.gh-grid tbody tr")
    page.get_by_text("17 rows").wait_for()
    assert rows.count() == 10
    shoot(page, "keys-paged")
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**/keys/?after=*")
    assert rows.count() == 7
    page.get_by_role("searchbox").fill("model-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/keys/?q=model-1*")
    assert "model-1" in rows.first.inner_text()
    shoot(page, "keys-found")


def test_dialog_that_is_refused_or_fails_says_so(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(refusals=True)
    log_in(page, "ada", then="/t/acme/keys/")
    services.set_tenant_state(Tenant.objects.get().pk, TenantState.SUSPENDED, actor=SYSTEM)
    page.get_by_role("link", name="New key").click()
    page.get_by_text("This is no longer possible.").wait_for()
    assert not page.get_by_role("dialog").is_visible()
    shoot(page, "dialog-refused")
    services.set_tenant_state(Tenant.objects.get().pk, TenantState.ACTIVE, actor=SYSTEM)
    page.get_by_role("link", name="New key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("x")
    page.route("**/keys/new/", lambda route: route.abort())
    page.get_by_role("button", name="Make key").click()
    page.get_by_role("dialog").get_by_text("The server could not be reached.").wait_for()
    shoot(page, "dialog-failed")


@pytest.mark.parametrize("width", [1600, 390])
def test_long_names_push_nothing_out_of_sight(open_page: OpenPage, shoot: Shoot, width: int) -> None:
    long = "organisation/" + "x" * 150
    for sums in (UsageMinute, UsageHour, UsageDay, TenantHour, TenantDay):
        sums.objects.filter(model="model-1").update(model=long)
    services.create_api_key(Tenant.objects.get(), name="k" * 80, allowed_models=[long], actor=SYSTEM)
    page = open_page(width=width)
    log_in(page, "ada", then="/t/acme/keys/")
    shoot(page, f"long-keys-{width}")
    if width == 1600:
        assert page.get_by_role("link", name="Revoke kkk").evaluate("e => e.getBoundingClientRect().right") < width
    page.goto("/t/acme/usage/?range=1h")
    page.locator("#usage-chart .point").first.wait_for(state="attached")
    shoot(page, f"long-usage-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_of_a_tenant_with_very_many_come_after_the_page(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.reads.usage.MANY_KEYS", 0)
    page = open_page()
    log_in(page, "ada", then="/t/acme/usage/?range=1h")
    keys = page.locator("section[aria-labelledby=keys-title]")
    keys.locator("tbody tr").first.wait_for()
    assert keys.count() == 1

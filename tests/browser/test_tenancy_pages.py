"""The console's jobs of tenancy in Chromium: each walked as an operator does it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AccessRequest, AuditEvent, Limit, Tenant, TenantRole, User, Webhook
from tests.browser.conftest import Web
from tests.browser.walk import log_in
from tests.dashboard.people import person, tenant
from tests.dashboard.tenancy_rows import asked_by, everything, limit

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


def test_a_tenant_is_made_limited_suspended_and_resumed(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "olga", then="/console/tenants/")
    page.get_by_role("link", name="New tenant").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Name", exact=True).fill("Research")
    sheet.get_by_label("Address").fill("No Slug")
    sheet.get_by_role("button", name="Make tenant").click()
    sheet.locator(".error").first.wait_for()  # told in the dialog, which stays open
    sheet.get_by_label("Address").fill("research")
    sheet.get_by_role("button", name="Make tenant").click()
    page.get_by_role("heading", name="Research", level=1).wait_for()
    page.get_by_role("link", name="New limit").click()
    sheet.get_by_label("What", exact=True).select_option("tokens")
    sheet.get_by_label("Over which time").select_option("day")
    sheet.get_by_label("At most").fill("250000")
    shoot(page, "tenancy-new-limit")
    sheet.get_by_role("button", name="Make limit").click()
    page.get_by_role("cell", name="250,000", exact=True).wait_for()
    made = Limit.objects.get()
    assert made.tenant is not None
    assert (made.tenant.slug, made.amount) == ("research", 250_000)
    page.goto("/console/tenants/research/")
    page.get_by_role("link", name="Suspend").click()
    sheet.get_by_text("is refused with 403").wait_for()
    shoot(page, "tenancy-suspend")
    sheet.get_by_role("button", name="Suspend").click()
    page.get_by_text("Suspended: every request").wait_for()
    assert Tenant.objects.get(slug="research").state == "suspended"
    page.get_by_role("link", name="Resume").click()
    sheet.get_by_role("button", name="Resume").click()
    page.get_by_text("Research serves again.").wait_for()


def test_a_request_is_approved_and_its_row_of_the_audit_log_read(open_page: OpenPage, shoot: Shoot) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    limit(acme)
    asked_by(acme, User.objects.get(email="ada@example.com"))
    page = open_page(theme="dark")
    page.clock.install()
    log_in(page, "olga")
    attention = page.locator('#attention [data-kind="approval_waits"]')
    attention.locator("p").get_by_text("1 request waits for a decision").wait_for()
    page.locator('#live[data-value="live"]').wait_for()  # 21 s later, one still connecting would be given up, loudly
    shoot(page, "tenancy-overview-dark")
    attention.get_by_role("link").focus()
    Webhook.objects.create(url="https://hooks.example.com/", enabled=False, disabled_reason="It answered 410.")
    page.clock.fast_forward(21_000)
    page.locator('#attention [data-kind="webhook_disabled"]').wait_for()
    page.keyboard.press("Enter")  # whose place in the list it was keeps it
    page.get_by_label("Note to the tenant").fill("Good luck with the launch.")
    shoot(page, "tenancy-approval-dark")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Approved: it is granted from now on.").wait_for()
    assert (AccessRequest.objects.get().state, Limit.objects.get().amount) == ("approved", 5_000)
    page.goto("/console/audit/")
    page.get_by_label("Search", exact=True).fill("limit.changed")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/audit/?*q=limit.changed*")
    page.locator("#main tbody a").first.click()
    page.get_by_role("heading", name="limit.changed", level=1).wait_for()
    assert page.locator("del").first.inner_text() == "− 1000"
    assert page.locator("ins").first.inner_text() == "+ 5000"
    shoot(page, "tenancy-event-dark")


def test_an_operator_looks_as_a_member_and_ends_it(open_page: OpenPage, shoot: Shoot) -> None:
    tenant("acme", ben=TenantRole.VIEWER)
    page = open_page(refusals=True)
    log_in(page, "olga", then="/console/tenants/acme/")
    page.get_by_role("link", name="View as").click()
    page.get_by_role("button", name="Look as this member").click()
    page.get_by_text("You are looking at Acme as Ben (Viewer) sees it.").wait_for()
    page.goto("/t/acme/keys/")
    page.locator("#viewing").wait_for()
    assert not page.get_by_role("link", name="New key").is_visible()
    shoot(page, "tenancy-view-as")
    page.goto("/console/tenants/")
    page.get_by_role("heading", name="You are looking as somebody else").wait_for()
    shoot(page, "tenancy-view-as-closed")
    page.get_by_role("button", name="End it").click()
    page.get_by_text("You look with your own eyes again.").wait_for()
    assert not page.locator("#viewing").is_visible()
    assert [
        *AuditEvent.objects.filter(action__startswith="view_as").order_by("pk").values_list("action", flat=True)
    ] == [
        "view_as.begun",
        "view_as.ended",
    ]


def test_the_audit_log_is_followed_as_it_happens(open_page: OpenPage, shoot: Shoot) -> None:
    acme = tenant("acme")
    page = open_page()
    log_in(page, "olga", then="/console/audit/?tenant=acme")
    page.get_by_role("button", name="Follow").click()
    tail = page.locator("#audit-tail")
    tail.get_by_text("tenant.created").wait_for()
    tail.locator('.pill[data-value="live"]').wait_for()
    services.create_api_key(acme, name="brand new", actor=SYSTEM)
    tail.get_by_text("brand new").wait_for()
    shoot(page, "tenancy-audit-live")
    page.get_by_role("button", name="Stop following").click()
    tail.get_by_text("brand new").wait_for(state="hidden")


def test_a_key_is_found_among_those_of_all_tenants_and_revoked(open_page: OpenPage) -> None:
    acme = everything()
    page = open_page(width=390)
    log_in(page, "olga", then="/console/keys/")
    page.get_by_label("Search", exact=True).fill(acme.api_keys.get().masked)
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/keys/?*q=*")  # the list of before has the key, too
    page.get_by_role("link", name="Revoke key-qwen3-8b").click()
    page.get_by_role("dialog").get_by_text("This cannot be undone").wait_for()
    page.get_by_role("button", name="Revoke key", exact=True).click()
    page.get_by_text("is revoked.").wait_for()
    assert acme.api_keys.get().revoked_at is not None

"""The main jobs of a tenant's people in Chromium: reading usage, asking for more, models, webhooks, settings."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from dashboard.reads import portal_limits
from tenants.models import AccessRequest, Delivery, Limit, RequestKind, Tenant, TenantRole, User, Webhook
from tenants.standing import Standing
from tests.browser.conftest import Web
from tests.browser.test_accessible import narrowed, violations, violations_in_both_themes
from tests.browser.walk import log_in
from tests.dashboard.people import pool, tenant
from tests.dashboard.portal_rows import busy
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]

PAGES = (
    "usage/?range=7d",
    "limits/",
    "limits/requests/",
    "models/",
    "playground/",
    "capacity/",
    "billing/",
    "settings/",
)


@pytest.fixture(autouse=True)
def acme(web: Web) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER, dev=TenantRole.DEVELOPER)
    pool()
    busy(made, User.objects.get(email="dev@example.com"))
    return made


def test_pages_hold_wcag_and_fit_the_screen(open_page: OpenPage, shoot: Shoot, acme: Tenant) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/")
    key, webhook = acme.api_keys.first(), Webhook.objects.get()
    assert key is not None
    found = []
    for path in ("", *PAGES, f"keys/{key.pk}/", f"settings/webhooks/{webhook.pk}/"):
        page.goto(f"/t/acme/{path}")
        found += violations_in_both_themes(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1600, path
        name = path.split("?")[0].split("0")[0].strip("/").replace("/", "-") or "home"
        shoot(page, f"portal-{name}")
        with narrowed(page):
            shoot(page, f"portal-narrow-{name}")
    assert found == []


def test_a_page_in_chinese_dark_and_narrow_holds_them_too(open_page: OpenPage, shoot: Shoot, acme: Tenant) -> None:
    page = open_page(theme="dark", language="zh-hans", width=390, height=844)
    log_in(page, "ada", then="/t/acme/limits/")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "portal-limits-dark-zh-hans")


def test_usage_is_grouped_filtered_and_counted_by_links_that_stand_in_the_address(
    open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/usage/?range=7d")
    page.locator("#usage-chart .point").first.wait_for(state="attached")
    page.get_by_role("link", name="Member", exact=True).click()
    page.wait_for_url("**group=member*")
    page.locator(".gh-legend").get_by_text("Dev").wait_for()
    page.get_by_role("link", name="Cost", exact=True).click()
    page.wait_for_url("**show=cost*")
    assert "range=7d" in page.url
    assert "group=member" in page.url
    page.get_by_placeholder("Key’s name").fill("batch")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=batch*")
    assert "group=member" in page.url
    rows = page.get_by_role("region", name="By key").locator("tbody tr")
    wait_until(lambda: rows.count() == 1, "the rows are not those that were searched for")
    rows.get_by_role("link", name="prod-batch").click()
    page.get_by_role("heading", name="prod-batch").wait_for()
    page.get_by_role("link", name="Usage", exact=True).last.click()
    page.get_by_text("Key: prod-batch").wait_for()
    shoot(page, "usage-of-a-key")


def test_more_is_asked_for_at_a_limit_and_taken_back(open_page: OpenPage, shoot: Shoot, acme: Tenant) -> None:
    page = open_page()
    log_in(page, "dev", then="/t/acme/limits/")
    page.locator("#usage-chart .point").first.wait_for(state="attached")
    page.get_by_role("link", name="Request more: Requests at once / at any moment").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("New amount").input_value() == "400"
    dialog.get_by_label("New amount").fill("150")
    dialog.get_by_label("Why").fill("More agents.")
    dialog.get_by_role("button", name="Ask").click()
    dialog.get_by_text("The limit allows 200 anyhow.").wait_for()
    shoot(page, "limit-more")
    dialog.get_by_label("New amount").fill("500")
    dialog.get_by_role("button", name="Ask").click()
    page.get_by_text("Whoever runs the platform decides").wait_for()
    asked = AccessRequest.objects.get(kind=RequestKind.LIMIT, what__metric="concurrency")
    assert asked.what["amount"] == 500
    page.get_by_role("link", name="Requests for more").first.click()
    page.get_by_role("row", name="500").get_by_role("link", name="Withdraw").click()
    dialog.get_by_role("button", name="Withdraw").click()
    page.get_by_text("The request is withdrawn.").wait_for()
    asked.refresh_from_db()
    assert asked.state == "withdrawn"
    assert Limit.objects.get(metric="concurrency").amount == 200


def test_money_has_its_unit_and_times_come_back_once_counters_can_be_read_again(
    open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[UUID, Standing] = {}
    monkeypatch.setattr(portal_limits, "read_standings", lambda _limits: found)
    page = open_page()
    log_in(page, "dev", then="/t/acme/limits/")
    money, at_once = (page.locator(f'tr[data-metric="{metric}"]') for metric in ("money", "concurrency"))
    assert money.locator("[data-used]").inner_text() == "unknown"
    assert money.locator("[data-reset]").inner_text() == "–"
    page.locator('[data-limits-state][data-value="live"]').wait_for()
    assert money.locator("progress:not([value])").count() == 1  # unknown, and not none of it
    standing = Standing(used=1_234_500_000, reserved=0, remaining=0, reset_seconds=7200)
    found |= dict.fromkeys(Limit.objects.values_list("pk", flat=True), standing)
    money.locator("[data-used]").get_by_text("1,234.50 USD", exact=True).wait_for()
    money.locator("[data-reset]").get_by_text("2 h", exact=True).wait_for()
    assert at_once.locator("[data-reset]").inner_text() == "–"


def test_a_webhook_is_made_its_secret_shown_once_and_a_test_sent(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/settings/")
    page.get_by_role("link", name="New webhook").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill("ftp://nowhere")
    dialog.get_by_role("button", name="Make webhook").click()
    dialog.locator(".error").wait_for()
    dialog.get_by_label("Address").fill("https://8.8.8.8/hook")
    dialog.get_by_role("button", name="Make webhook").click()
    secret = dialog.get_by_label("Signing secret").input_value()
    assert secret.startswith("whsec_")
    shoot(page, "webhook-secret")
    dialog.get_by_role("link", name="Done").click()
    page.get_by_role("heading", name="Webhook", exact=True).wait_for()
    assert secret not in page.content()
    page.get_by_role("button", name="Send a test").click()
    page.get_by_text("A test is under way").wait_for()
    page.get_by_role("cell", name="A test of this webhook").wait_for()
    assert Delivery.objects.get().notice.kind == "test"
    shoot(page, "webhook")


def _stream(*texts: str) -> str:
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    last = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}}
    return "".join(f"data: {json.dumps(one)}\n\n" for one in (*chunks, last)) + "data: [DONE]\n\n"


def test_what_a_model_says_is_text_and_never_markup(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page()
    log_in(page, "dev", then="/t/acme/playground/")
    hostile = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
    page.route(
        "**/playground/chat/",
        lambda route: route.fulfill(
            status=200, content_type="text/event-stream", body=_stream(hostile, "</div>", "**bold**")
        ),
    )
    # What is read out is taken away again after a while, which may be over before it is looked for.
    page.evaluate(
        """() => {
          const place = document.querySelector("#play-panes [role=status]");
          window.told = [];
          new MutationObserver(() => told.push(place.textContent)).observe(place, { childList: true });
        }"""
    )
    page.get_by_label("Your message").fill(f"Say {hostile}")
    page.keyboard.press("Enter")
    page.locator(".turn-note").get_by_text("3 in, 3 out").wait_for()
    assert page.locator(".turn.assistant .turn-text").inner_text() == f"{hostile}</div>**bold**"
    assert page.locator(".turn.user .turn-text").inner_text() == f"Say {hostile}"
    wait_until(lambda: bool(page.evaluate("told.length")), "nothing is read out")
    assert page.evaluate("told.filter(Boolean)") == [f"qwen3-8b: {hostile}</div>**bold**"]  # read out, once
    assert page.locator("#play-panes [aria-live]").count() == 0
    assert page.locator("#play-panes img, #play-panes script").count() == 0
    assert page.evaluate("window.hit") is None
    page.get_by_role("button", name="Copy as code").click()
    assert hostile.replace('"', '\\"') in page.locator("#code-javascript").text_content()  # type: ignore[operator]  # there
    shoot(page, "playground-hostile")


def test_a_refusal_is_told_as_the_api_tells_it_and_a_wrong_number_is_not_sent(open_page: OpenPage) -> None:
    page = open_page(refusals=True)
    log_in(page, "dev", then="/t/acme/playground/")
    asked: list[str] = []

    def refuse(route: "Route") -> None:
        asked.append(route.request.post_data or "")
        assert route.request.headers["x-csrftoken"]
        error = {"error": {"message": "Limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
        headers = {"retry-after": "7", "x-request-id": "abc"}
        route.fulfill(status=403, content_type="application/json", headers=headers, body=json.dumps(error))

    page.route("**/playground/chat/", refuse)
    page.get_by_label("temperature").fill("9")
    page.get_by_label("Your message").fill("Hello")
    page.keyboard.press("Enter")
    page.get_by_text("temperature: give a number from 0 to 2.").wait_for()
    wrong = page.locator('[aria-invalid="true"][aria-describedby="play-fault"]:focus')
    assert wrong.get_attribute("name") == "temperature"
    assert asked == []
    page.get_by_label("temperature").fill("0.5")
    page.get_by_label("stop", exact=True).fill("END|###")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("rate_limit_exceeded · Limit reached. Try again in 7 s. · request abc").wait_for()
    body = json.loads(asked[0])
    assert (body["temperature"], body["stop"], body["max_tokens"], body["stream"]) == (0.5, ["END", "###"], 512, True)
    assert "seed" not in body

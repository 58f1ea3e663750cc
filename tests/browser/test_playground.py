"""From a key to an answer, and a chat in the playground: Chromium, the real doors, and a real llama.cpp."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx2 as httpx
import pytest

from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, TenantRole, UsageRecord
from tenants.policies.pricing import PriceTag
from tenants.services import add_member, create_user, grant_model
from tenants.services.prices import set_price
from tests.browser.conftest import DEADLINE_MS
from tests.browser.walk import log_in
from tests.dashboard.people import PASSWORD
from tests.doubles.engine import EngineDouble, Received, Wire
from tests.house import TestHouse
from tests.house import house as house
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LATER_SECONDS = 60.0


@pytest.fixture(scope="module")
def portal(house: TestHouse) -> TestHouse:
    """The house with its web door open, and Ada of acme."""
    ada = create_user(email="ada@example.com", password=PASSWORD, display_name="Ada", actor=SYSTEM)
    add_member(house.tenant, ada, role=TenantRole.OWNER, actor=SYSTEM)
    set_price("tiny", PriceTag(input_micros=1_000_000, output_micros=3_000_000, request_micros=7), actor=SYSTEM)
    house.environ["GATEHOUSE_RELAY_URL"] = house.relay_url
    house.start("web")
    return house


@pytest.fixture
def page(portal: TestHouse, chromium: "Browser") -> "Iterator[Page]":
    context = chromium.new_context(base_url=portal.web_url, viewport={"width": 1600, "height": 1000})
    context.set_default_timeout(DEADLINE_MS)
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    log_in(page, "ada", then="/t/acme/")
    yield page
    context.close()
    assert complaints == []


def test_a_key_is_made_and_the_shown_example_is_answered_with_it(portal: TestHouse, page: "Page") -> None:
    page.get_by_text("Waiting for your first request").wait_for()
    base_url = page.locator("dd.mono").first.inner_text()
    shown = page.locator("#snippet-curl").inner_text()
    body = json.loads(shown[shown.index("-d '") + 4 : shown.rindex("'")])
    page.get_by_role("link", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("first")
    dialog.get_by_role("button", name="Make key").click()
    secret = dialog.get_by_role("textbox", name="API key").input_value()
    answer = httpx.post(
        f"{base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {secret}"}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == body["model"] == "tiny"
    page.keyboard.press("Escape")
    page.get_by_text("We saw your request").wait_for(timeout=LATER_SECONDS * 1000)
    page.get_by_text("With the key “first”.").wait_for()


def test_a_chat_streams_counts_for_the_tenant_and_leaves_no_secret(portal: TestHouse, page: "Page") -> None:
    page.goto("/t/acme/playground/?model=tiny")
    page.get_by_label("max_tokens").fill("12")
    page.get_by_label("seed").fill("1")
    page.get_by_label("temperature").fill("0")
    page.get_by_label("System prompt").fill("You are brief.")
    page.get_by_label("Another model beside it").check()
    page.get_by_label("Second model").select_option("idle")
    page.get_by_label("Your message").fill("Hello")
    page.keyboard.press("Enter")
    note = page.locator(".play-pane").first.locator(".turn-note")
    note.get_by_text("ms a token").wait_for()
    told = note.inner_text()
    assert "first token" in told
    refused = page.locator(".play-pane").last.locator(".turn-note.bad-text")
    refused.get_by_text("no_ready_instance").wait_for()  # as the API tells it
    request_id = told.rsplit("request ", 1)[1].strip()
    row = portal.ledger_row(request_id)
    assert note.get_by_role("link").get_attribute("href") == f"/t/acme/requests/{row.pk}/"
    key = ApiKey.objects.get(purpose="playground")
    assert (row.tenant_id, row.key_id, row.door, row.streamed) == (portal.tenant.pk, key.pk, "drf", True)
    assert f"{row.input_tokens} in, {row.output_tokens} out" in told
    assert f"{row.cost_micros / 1_000_000:.6f}" in told  # the page reckons as the ledger does
    assert AuditEvent.objects.filter(action="playground.opened", subject_id=key.pk).count() == 1
    assert "sk-gh-" not in page.content()
    assert page.evaluate("Object.keys(localStorage).concat(Object.keys(sessionStorage)).join()") in (
        "",
        "gatehouse.theme",
    )
    page.get_by_role("button", name="Copy as code").click()
    curl = page.locator("#code-curl").inner_text()
    assert portal.relay_url in curl
    assert '"max_tokens": 12' in curl
    assert "You are brief." in curl
    page.get_by_role("tab", name="Python").click()
    compile(page.locator("#code-python").inner_text(), "copied", "exec")
    assert page.locator("#play-code h3:visible").all_inner_texts() == ["tiny", "idle"]
    beside = page.locator("#code-python-beside").inner_text()
    compile(beside, "copied", "exec")
    assert 'model="idle"' in beside
    assert page.locator("#code-python-beside + [data-copy]").get_attribute("data-copy") == "#code-python-beside"
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Another model beside it").uncheck()
    page.get_by_role("button", name="Copy as code").click()
    assert page.locator("#play-code h3:visible, #code-python-beside:visible").count() == 0


@pytest.fixture
def slow(portal: TestHouse) -> Iterator[EngineDouble]:
    """An engine that says one word and then nothing, behind the model `slow`."""

    async def say_one_word(request: Received, wire: Wire) -> None:
        await wire.head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Once"}}]}
        await wire.chunk(f"data: {json.dumps(chunk)}\n\n".encode())
        await wire.stall()

    double = EngineDouble(say_one_word)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(double.__aenter__(), loop).result(10)
    attach("slow", double.port, engine="vllm")
    grant_model(portal.tenant, model_pattern="slow", actor=SYSTEM)
    yield double
    asyncio.run_coroutine_threadsafe(double.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_stop_ends_the_answer_at_the_engine(portal: TestHouse, slow: EngineDouble, page: "Page") -> None:
    page.goto("/t/acme/playground/?model=slow")
    page.get_by_label("Your message").fill("Tell me a long story.")
    page.keyboard.press("Enter")
    page.locator(".turn.assistant .turn-text").get_by_text("Once").wait_for()
    assert slow.open == 1
    page.get_by_role("button", name="Stop").click()
    page.locator(".turn-note").get_by_text("Stopped.").wait_for()
    wait_until(lambda: slow.open == 0, "the engine is still asked", deadline_seconds=LATER_SECONDS)
    cancelled = UsageRecord.objects.filter(tenant_id=portal.tenant.pk, model="slow", outcome="cancelled")
    wait_until(cancelled.exists, "the ledger does not say that it was stopped", deadline_seconds=LATER_SECONDS)


def test_what_went_wrong_is_told_apart_and_each_answer_says_whose_it_is(portal: TestHouse, page: "Page") -> None:
    page.goto("/t/acme/playground/?model=tiny")
    ask, notes = page.get_by_label("Your message"), page.locator(".turn-note")
    page.route("**/playground/chat/", lambda route: route.abort())
    ask.fill("Hello")
    page.keyboard.press("Enter")
    notes.last.get_by_text("The gateway did not answer.").wait_for()
    wait_until(lambda: ask.input_value() == "Hello", "the question can be asked again", deadline_seconds=LATER_SECONDS)
    page.unroute("**/playground/chat/")
    page.route(
        "**/playground/chat/",
        lambda route: route.fulfill(content_type="text/event-stream", body=": held\n\n"),
    )
    page.get_by_label("Model", exact=True).select_option("idle")
    ask.fill("Hello")
    page.keyboard.press("Enter")
    notes.last.get_by_text("The connection ended before the answer did.").wait_for()
    assert page.locator(".turn-model").all_inner_texts() == ["tiny", "idle"]
    wait_until(lambda: ask.input_value() == "Hello", "the question can be asked again", deadline_seconds=LATER_SECONDS)
    page.unroute("**/playground/chat/")
    page.route("**/playground/chat/", lambda route: None)  # nothing comes
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Clear").click()
    page.locator('#playground [type="submit"]:enabled').wait_for()
    assert ask.input_value() == ""  # what was cleared away does not come back

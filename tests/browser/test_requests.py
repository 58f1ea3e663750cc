"""Requests in Chromium: the log with its filters and live tail, one request's waterfall, stages, refusals."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from core.ids import uuid7_from
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole
from tenants.refusals import RefusalBatch, RefusalCount
from tenants.services.ledger import record_usage
from tenants.services.refusals import record_refusals
from tenants.usage import UsageRow
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in, wait_for_pill
from tests.dashboard.people import person, tenant
from tests.tenants.usage_rows import usage_row

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
PROCESS = uuid4()
_numbers = iter(range(1, 1_000_000))


def _row(owner: Tenant, key_id: UUID, seconds_ago: float, **more: Any) -> UsageRow:
    number, at = next(_numbers), timezone.now() - timedelta(seconds=seconds_ago)
    identity = uuid7_from(int(at.timestamp() * 1000), number % 4096, number)
    return usage_row(
        PROCESS,
        number,
        id=identity,
        started_at=at.timestamp(),
        tenant_id=owner.pk,
        key_id=key_id,
        streamed=True,
        **more,
    )


def _times(dice: random.Random) -> dict[str, Any]:
    queue, connect, prefill = dice.expovariate(1 / 25), dice.choice((0.0, 0.0, 1.4)), dice.lognormvariate(5.4, 0.5)
    first, tokens = dice.uniform(12, 40), dice.randint(20, 400)
    ttft = queue + connect + prefill
    return {
        "queue_ms": queue, "connect_ms": connect, "ttft_ms": ttft, "first_decode_ms": first,
        "duration_ms": ttft + first + tokens * dice.uniform(8, 14), "output_tokens": tokens,
        "input_tokens": dice.randint(200, 9000), "cached_tokens": 128, "cost_micros": tokens * 31,
    }  # fmt: skip


@pytest.fixture
def acme(web: Web) -> Tenant:
    person("olga", platform_role="operator")
    made, dice = tenant("acme", ada=TenantRole.DEVELOPER), random.Random(7)
    other = tenant("globex")
    rows, minute = [], int(timezone.now().timestamp() // 60) * 60
    for owner, name in ((made, "checkout service"), (made, "nightly etl"), (other, "support desk")):
        key = services.create_api_key(owner, name=name, actor=SYSTEM).key
        for place in range(30):
            odd = dice.random()
            ending = (
                {"outcome": "failed", "status": 502, "error_code": "upstream_error", "ttft_ms": None}
                if odd > 0.94
                else {"outcome": "cancelled", "status": 499}
                if odd > 0.88
                else {}
            )
            more = {**_times(dice), **ending, "model": dice.choice(("qwen3-8b", "llama-70b")), "tokenise_ms": None}
            rows.append(_row(owner, key.pk, 60 + 30 * place + odd, **more))
        refused = [("rate_limit_exceeded", 429, "tokens", "minute", 812), ("no_ready_instance", 503, "", "", 14)]
        counts = [
            RefusalCount(owner.pk, key.pk, "qwen3-8b", code, status, metric, window, minute, n)
            for code, status, metric, window, n in refused
        ]
        record_refusals([RefusalBatch(uuid4(), 1, counts)])
    record_usage(rows)
    return made


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_the_pages_of_requests(open_page: OpenPage, shoot: Shoot, acme: Tenant, theme: str, language: str) -> None:
    page = open_page(theme=theme, language=language)
    log_in(page, "olga", then="/console/requests/")
    page.locator("#request-rows tr").first.wait_for()
    shoot(page, f"requests-{theme}")
    found = violations(page)
    page.locator("#request-rows a.main").first.click()
    page.locator("#waterfall-title").wait_for()
    shoot(page, f"request-{theme}")
    found += violations(page)
    for name in ("stages", "refused"):
        page.goto(f"/console/requests/{name}/")
        page.locator("h2").first.wait_for()
        shoot(page, f"requests-{name}-{theme}")
        found += violations(page)
    assert found == []


def test_newer_requests_come_in_by_the_filters_that_are_chosen(open_page: OpenPage, shoot: Shoot, acme: Tenant) -> None:
    page = open_page()
    log_in(page, "ada", then="/t/acme/requests/?model=qwen3-8b")
    rows = page.locator("#request-rows tr")
    rows.first.wait_for()
    before = rows.count()
    page.get_by_role("button", name="Live tail").click()
    wait_for_pill(page, "live")
    key = services.create_api_key(acme, name="a new key", actor=SYSTEM).key
    dice = random.Random(1)
    record_usage(
        [
            _row(acme, key.pk, 0.2, **_times(dice), model="llama-70b"),
            _row(acme, key.pk, 0.1, **_times(dice), model="qwen3-8b"),
        ]
    )
    page.locator("#request-rows tr.fresh").wait_for()
    assert "a new key" in (rows.first.text_content() or "")
    assert rows.count() == before + 1
    shoot(page, "requests-tail")
    page.get_by_role("button", name="Live tail").click()
    page.locator("#live").wait_for(state="hidden")
    rows.first.get_by_role("link").first.click()
    page.locator("#waterfall-title").wait_for()
    page.locator(".facts").get_by_text("a new key").first.wait_for()


def test_filters_are_kept_in_the_address(open_page: OpenPage, acme: Tenant) -> None:
    page = open_page(width=390, height=844)
    log_in(page, "ada", then="/t/acme/")
    page.goto("/t/acme/requests/?range=6h&min_tpot_ms=1")
    page.get_by_label("Outcome").select_option("failures")
    page.wait_for_url("**outcome=failures**")
    assert "range=6h" in page.url
    assert "min_tpot_ms=1" in page.url
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

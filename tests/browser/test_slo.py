"""Objectives in Chromium: the board as it looks, made by a person, live."""

import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from gateway.models import Objective, ObjectiveHour, ObjectiveMinute
from gateway.policies.slo import BOUNDS, Kind, place_of
from gateway.services.objective_alerts import evaluate_objectives
from tenants.models import TenantRole
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in, wait_for_pill
from tests.dashboard.people import person, tenant
from tests.gateway.slo_rows import ttft_objective
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route, WebSocketRoute

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


def now() -> datetime:
    return timezone.now().replace(second=0, microsecond=0)


@cache
def spread(total: int, median: float, kind: Kind) -> list[int]:
    """So many requests around a median, spread as latencies are."""
    bounds, counts, low = BOUNDS[kind], [], 0.0
    for bound in (*bounds, bounds[-1] * 4):
        share = 0.5 * (
            math.erf(math.log(bound / median) / 0.62) - (math.erf(math.log(low / median) / 0.62) if low else -1)
        )
        counts.append(round(total * share))
        low = bound
    return counts


def tallies(
    objective: Objective, *, requests: int, median: float, trouble: float = 1.0, reach: int = 7 * 60, hours: int = 48
) -> None:
    """Weeks of traffic, with trouble in the last hour: `trouble` times as slow."""
    kind, end = Kind(objective.kind), now()
    place = 0 if objective.threshold_seconds is None else place_of(kind, objective.threshold_seconds)
    minutes = []
    for minute in range(reach):
        at = end - timedelta(minutes=minute + 1)
        slower = 1 + (trouble - 1) * max(0.0, 1 - minute / 50)
        counts = spread(requests + minute % 7, round(median * slower * (1 + 0.12 * math.sin(minute / 90)), 3), kind)
        minutes.append((at, counts))
    by_hour: dict[datetime, list[int]] = {}
    for at, counts in minutes:
        hour = at.replace(minute=0)
        by_hour[hour] = [a + b for a, b in zip(by_hour.get(hour, [0] * len(counts)), counts, strict=True)]
    first = min(by_hour)
    usual = [60 * count for count in spread(requests, median, kind)]
    for back in range(1, hours):
        by_hour[first - timedelta(hours=back)] = usual

    def good(counts: list[int], *, failed: bool) -> int:
        return sum(counts[:place]) if place else sum(counts) - failed

    ObjectiveMinute.objects.bulk_create(
        ObjectiveMinute(objective=objective, minute=at, total=sum(c), good=good(c, failed=at.minute == 7), buckets=c)
        for at, c in minutes
    )
    ObjectiveHour.objects.bulk_create(
        ObjectiveHour(objective=objective, hour=at, total=sum(c), good=good(c, failed=True), buckets=c)
        for at, c in by_hour.items()
    )
    Objective.objects.filter(pk=objective.pk).update(tallied_at=timezone.now())


@pytest.fixture
def board(web: Web, monkeypatch: pytest.MonkeyPatch) -> Objective:
    """Eight objectives of which one pages."""
    person("olga", platform_role="operator")
    tenant("acme", ada=TenantRole.OWNER)
    monkeypatch.setattr("gateway.services.objective_alerts.tally_objectives", lambda **_: 0)
    burning = ttft_objective()
    tallies(burning, requests=60, median=0.27, trouble=6, reach=13 * 60, hours=30 * 24)
    others = [
        ("chat-large · error rate", "availability", None, 0.999, "chat-large", 0.3),
        ("chat-large · TPOT", "tpot", 0.05, 0.95, "chat-large", 0.022),
        ("code-fast · TTFT", "ttft", 0.5, 0.99, "code-fast", 0.2),
        ("code-fast · error rate", "availability", None, 0.999, "code-fast", 0.2),
        ("embed · queue", "queue_wait", 0.2, 0.995, "embed", 0.02),
        ("vision · TTFT", "ttft", 1.5, 0.97, "vision", 0.6),
    ]
    for name, kind, threshold, target, model, median in others:
        made = ttft_objective(name=name, kind=kind, threshold_seconds=threshold, target=target, model=model)
        tallies(made, requests=40, median=median)
    ttft_objective(name="batch · TTFT", model="batch", threshold_seconds=60.0)
    Objective.objects.filter(tallied_at=None).update(tallied_at=timezone.now())
    evaluate_objectives(now=timezone.now())
    return burning


def chart_is_drawn(page: "Page", name: str) -> None:
    page.locator(f"#{name} .main-svg").first.wait_for()


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_the_board_in_both_themes(
    board: Objective, open_page: OpenPage, shoot: Shoot, theme: str, language: str
) -> None:
    page = open_page(theme=theme, language=language, width=1600, height=1120)
    log_in(page, "olga", then="/console/slo/")
    wait_for_pill(page, "live")
    for name in ("slo-budget-chart", "slo-burn-chart", "slo-heat-chart"):
        chart_is_drawn(page, name)
    assert page.locator(".slo-row").count() == 8
    assert page.locator(".slo-row[aria-current] .name").inner_text() == "chat-large · TTFT"
    shoot(page, f"slo-{theme}")
    for table in page.locator(".as-table summary").all():
        table.click()
    assert violations(page) == []  # of the board with figures in it, as no other page has


def test_an_operator_makes_one_and_is_told_what_a_threshold_may_be(board: Objective, open_page: OpenPage) -> None:
    page = open_page(width=1280, height=900)
    log_in(page, "olga", then="/console/slo/")
    page.get_by_role("link", name="New objective").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("vision · queue")
    dialog.get_by_label("What is promised").select_option("queue_wait")
    dialog.get_by_label("Within, in seconds").fill("0.7")
    dialog.get_by_role("button", name="Make objective").click()
    dialog.get_by_text("Take 0.5 s or 0.8 s.").wait_for()
    dialog.get_by_label("Within, in seconds").fill("0.8")
    dialog.get_by_role("button", name="Make objective").click()
    page.get_by_role("heading", name="vision · queue").wait_for()
    page.wait_for_load_state()
    assert page.locator(".slo-row").count() == 9
    page.get_by_role("link", name="Delete the objective").click()
    page.get_by_role("button", name="Delete objective").click()
    page.get_by_text("The objective vision · queue is deleted.").wait_for()


def test_an_alert_is_acknowledged_silenced_and_shown_live(board: Objective, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(width=1280, height=900, refusals=True)  # it asks for what is deleted, maybe
    log_in(page, "olga", then=f"/console/slo/{board.pk}/")
    wait_for_pill(page, "live")
    page.get_by_role("button", name="Acknowledge").first.click()
    page.get_by_text("Acknowledged", exact=True).first.wait_for()
    page.get_by_role("link", name="Silence this objective").click()
    page.get_by_role("dialog").get_by_label("Why").fill("load test")
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    page.get_by_text("load test").wait_for()
    wait_for_pill(page, "live")
    page.get_by_role("link", name="Change the objective").focus()
    Objective.objects.filter(pk=board.pk).update(name="renamed meanwhile")
    page.locator(".slo-row .name", has_text="renamed meanwhile").wait_for()
    # Who has got there by keyboard reads no older figures than the page says, and stays where they are.
    page.get_by_role("heading", name="renamed meanwhile").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Change the objective"
    chart_is_drawn(page, "slo-heat-chart")
    shoot(page, "slo-silenced")
    Objective.objects.get(pk=board.pk).delete()
    page.wait_for_url("**/console/slo/")  # not its last figures under a live pill


def test_what_its_tenant_deletes_is_left_and_tables_stay_where_they_were_scrolled(
    open_page: OpenPage, web: Web
) -> None:
    person("olga", platform_role="operator")
    acme = tenant("acme", ada=TenantRole.OWNER)
    ours, theirs = ttft_objective(), ttft_objective(name="theirs", tenant=acme, tenants_own=True)
    for one in (ours, theirs):
        tallies(one, requests=40, median=0.2)
    page = open_page(width=390, height=844, refusals=True)  # it asks for what is deleted
    log_in(page, "olga", then=f"/console/slo/{theirs.pk}/")
    wait_for_pill(page, "live")
    page.locator("#slo-heat-table summary").click()
    table = page.locator("#slo-heat-table .scroll-x")
    table.evaluate("node => node.scrollTo(40, 30)")
    Objective.objects.filter(pk=theirs.pk).update(name="theirs, renamed")
    Objective.objects.filter(pk=ours.pk).update(name="renamed")  # frames of the console tell of the platform's
    page.get_by_role("heading", name="theirs, renamed").wait_for()
    assert table.evaluate("node => [node.scrollLeft, node.scrollTop]") == [40, 30]
    theirs.delete()
    Objective.objects.filter(pk=ours.pk).update(name="renamed again")
    page.wait_for_url("**/console/slo/")


def test_what_changes_while_a_change_is_asked_for_is_asked_for_again(open_page: OpenPage, web: Web) -> None:
    person("olga", platform_role="operator")
    ttft_objective()
    page = open_page()
    page.add_init_script("Math.random = () => 0")  # asked for at once
    sockets: list[WebSocketRoute] = []
    asked: list[Route] = []

    def listens(opened: "WebSocketRoute") -> None:
        # With a period that outlasts the test: a page gives up a socket that says nothing for ten seconds.
        opened.send(json.dumps({"op": "subscribed", "n": 1, "period": 60}))
        sockets.append(opened)

    def change(name: str) -> None:
        Objective.objects.update(name=name)
        sockets[0].send(json.dumps({"n": 1, "as_of": 0, "objectives": [name]}))

    page.route_web_socket("**/ws/live", lambda opened: opened.on_message(lambda _: listens(opened)))
    log_in(page, "olga", then="/console/slo/")
    wait_until(lambda: bool(page.evaluate("true") and sockets), "it does not listen")
    change("first")
    wait_for_pill(page, "live")
    page.route(page.url, lambda route: asked.append(route))
    change("second")
    wait_until(lambda: bool(page.evaluate("true") and asked), "it does not ask")
    answer = asked[0].fetch()
    change("third")
    page.get_by_role("link", name="New objective").click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    asked[0].fulfill(response=answer)
    page.locator(".slo-row .name", has_text="second").wait_for()
    page.unroute(page.url)
    dialog.get_by_role("link", name="Cancel").click()
    page.locator(".slo-row .name", has_text="third").wait_for()


def test_a_row_leads_to_its_objective_and_the_range_stays_in_the_address(board: Objective, open_page: OpenPage) -> None:
    page = open_page(width=390, height=844)
    log_in(page, "olga", then="/console/slo/?range=24h")
    page.locator(".slo-row", has_text="embed").click()
    page.get_by_role("heading", name="embed · queue").wait_for()
    assert "range=24h" in page.url
    chart_is_drawn(page, "slo-heat-chart")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

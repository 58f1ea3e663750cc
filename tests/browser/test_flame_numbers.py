"""What the wall costs: milliseconds of script an update, bytes a second, and memory that does not grow.

The short form holds what does not hang on how busy the machine is; `-m drill` plays five minutes against the bars.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Web
from tests.browser.walk import wait_for_pill
from tests.browser.walls import WallDouble, signed_in
from tests.dashboard.live.memory_examples import MovingFleet
from tests.dashboard.people import person
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

OpenPage = Callable[..., "Page"]

KEYFRAME_SECONDS = 30
"""As dashboard.live.publisher sends them."""


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


def opened(page: "Page", gpus: int) -> WallDouble:
    double = WallDouble(page, MovingFleet(gpus))
    signed_in(page, "olga")
    page.goto("/console/gpu-memory/")
    wait_for_pill(page, "live")
    page.locator("[data-part=filled]").wait_for()
    return double


def played(page: "Page", double: WallDouble, seconds: int, *, pace: float) -> dict[str, Any]:
    """`seconds` updates, `pace` seconds apart; what the page measured of them, and what went over the wire."""
    for _ in range(5):  # code that runs for the first time is compiled
        double.tick()
    wait_until(lambda: page.evaluate("gatehouseFlame.stats.updates") >= 6, "frames do not arrive")
    page.evaluate("gatehouseFlame.stats.reset()")
    double.sent_bytes = 0
    due = time.monotonic()
    for second in range(1, seconds + 1):
        double.keyframe() if second % KEYFRAME_SECONDS == 0 else double.tick()
        due += pace
        page.wait_for_timeout(max(1.0, 1000 * (due - time.monotonic())))
    wait_until(lambda: page.evaluate("gatehouseFlame.stats.updates") >= seconds, "frames do not arrive")
    summary: dict[str, Any] = page.evaluate("gatehouseFlame.stats.summary()")
    return summary | {"wire_bytes": double.sent_bytes / seconds}


def heap(session: "CDPSession") -> int:
    """Bytes of script memory that are still in use after collecting."""
    session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    return used


def thread_seconds(session: "CDPSession") -> float:
    """Processor time that the page's thread has taken."""
    told = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return float(told["TaskDuration"])


@pytest.mark.parametrize(("gpus", "nodes", "bytes_a_second"), [(64, 2_600, 3_000), (1_024, 41_000, 48_000)])
def test_updates_are_small_and_leave_nothing_behind(
    open_page: OpenPage, gpus: int, nodes: int, bytes_a_second: int
) -> None:
    page = open_page()
    double = opened(page, gpus)
    session = page.context.new_cdp_session(page)
    assert page.evaluate("gatehouseFlame.now.tree.count") >= nodes
    page.locator(".flame-history .scatterlayer").wait_for(state="attached")
    page.route("**/gpu-memory/history/**", lambda route: None)  # later its axis may have another number of ticks
    played(page, double, 10, pace=0.01)
    elements = page.evaluate("document.querySelectorAll('*').length")
    before = heap(session)
    found = played(page, double, KEYFRAME_SECONDS, pace=0.01)
    assert found["wire_bytes"] <= bytes_a_second
    assert found["resyncs"] == 0
    assert heap(session) - before < 2_000_000
    assert page.evaluate("document.querySelectorAll('*').length") == elements  # no element is a rectangle
    assert elements < 2_500


@pytest.mark.drill
@pytest.mark.parametrize(
    ("gpus", "p95_ms", "bytes_a_second", "seconds"), [(64, 16, 3_000, 300), (1_024, 100, 48_000, 60)]
)
def test_five_minutes_hold_the_bars(
    open_page: OpenPage, gpus: int, p95_ms: int, bytes_a_second: int, seconds: int
) -> None:
    page = open_page()
    double = opened(page, gpus)
    session = page.context.new_cdp_session(page)
    played(page, double, 10, pace=1.0)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, cpu = heap(session), thread_seconds(session)
    found = played(page, double, seconds, pace=1.0)
    # Processor time of the page's thread, all that it does: a machine that is busy elsewhere adds nothing to it.
    found["thread_ms_a_second"] = 1000 * (thread_seconds(session) - cpu) / seconds
    grown = heap(session) - before
    print(f"\n{gpus} GPUs, {page.evaluate('gatehouseFlame.now.tree.count')} nodes: {found}, heap {grown:+,} bytes")
    assert found["p95_ms"] < p95_ms
    assert found["wire_bytes"] <= bytes_a_second
    assert found["resyncs"] == 0
    assert grown < 2_000_000
    began = time.monotonic()
    page.locator("[data-part=stage]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("[data-part=crumbs] li").nth(1).wait_for()
    assert time.monotonic() - began < 2

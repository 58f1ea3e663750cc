"""Where the wall was wrong once or could be: icicle, drawn zoom, topologies, strange devices and names, races."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tenants.models import TenantRole
from tests.browser.conftest import Web
from tests.browser.walk import wait_for_pill
from tests.browser.walls import WallDouble, signed_in, told
from tests.dashboard.live.memory_examples import MovingFleet
from tests.dashboard.people import person, tenant
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
WALL = "/console/gpu-memory/"


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


def opened(page: "Page", fleet: MovingFleet, address: str = WALL, *, name: str = "olga") -> WallDouble:
    double = WallDouble(page, fleet)
    signed_in(page, name)
    page.goto(address)
    wait_for_pill(page, "live")
    page.locator("[data-part=filled]").wait_for()
    return double


def rename(fleet: MovingFleet, place: int, **changes: Any) -> None:
    """Another name, id or extra member: another topology, and so another epoch."""
    parent, kind, key, label, extra = fleet._nodes[place]
    key, label = changes.pop("key", key), changes.pop("label", label)
    fleet._nodes[place] = (parent, kind, key, label, {**extra, **changes})


def places(fleet: MovingFleet, kind: str) -> list[int]:
    return [place for place, node in enumerate(fleet._nodes) if node[1] == kind]


def test_icicle_and_a_drawn_zoom_outlive_figures_and_another_topology(open_page: OpenPage, shoot: Shoot) -> None:
    fleet = MovingFleet(2)
    page = open_page()
    double = opened(page, fleet, f"{WALL}?view=icicle")
    assert told(page, "wall.plan.banded") is False
    left, top, width = page.evaluate(
        """() => { const { wall } = gatehouseFlame; const box = wall.stage.getBoundingClientRect();
        return [box.left + wall.margins.left, box.top + wall.margins.top + 20, wall.width]; }"""
    )
    page.mouse.move(left + 0.1 * width, top)
    page.mouse.down()
    page.mouse.move(left + 0.25 * width, top, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="All bytes").wait_for()
    start, end = told(page, "wall.range")
    whole = told(page, "wall.plan.widest")
    assert abs(start / whole - 0.1) < 0.02
    assert abs(end / whole - 0.25) < 0.02
    assert "scope" not in page.url  # to draw a zoom is no click
    shoot(page, "flame-icicle-zoomed")

    page.locator("[data-part=stage]").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "End"):
        page.keyboard.press(key)
    start, end = told(page, "wall.range")  # it has moved to where the focus is
    at, wide = page.evaluate(
        "(({ wall }) => [wall.plan.x[wall.focused], wall.plan.tree.sum[wall.focused]])(gatehouseFlame)"
    )
    assert start <= at + wide
    assert at <= end
    double.tick()
    rename(fleet, places(fleet, "tenant")[0], label="another name")
    double.tick()
    wait_until(lambda: told(page, "stats.keyframes") == 2, "the other topology does not arrive")
    assert told(page, "wall.range") == [start, end]
    assert told(page, "wall.focused") == places(fleet, "gpu")[-1]
    page.get_by_role("button", name="All bytes").click()
    assert told(page, "wall.range") == [0, whole]


def test_arrows_below_an_ancestor_go_to_what_is_drawn_and_an_open_menu_keeps_escape(open_page: OpenPage) -> None:
    fleet = MovingFleet(2)
    second = places(fleet, "tenant")[1]
    page = open_page()
    opened(page, fleet)
    page.evaluate("gatehouseFlame.wall.on.enter(1)")
    page.goto(f"{WALL}?scope=tenant:{fleet._nodes[2][2]}~{fleet._nodes[second][2]}")
    page.locator("[data-part=crumbs] li").nth(3).wait_for()
    stage = page.locator("[data-part=stage]")
    stage.focus()
    page.keyboard.press("ArrowRight")
    assert told(page, "wall.focused") == second
    page.keyboard.press("ArrowUp")
    assert told(page, "wall.focused") == 2
    assert page.locator("[data-part=live-text]").inner_text().startswith("GPU 0: Memory 79 GiB")
    page.keyboard.press("ArrowDown")
    assert told(page, "wall.focused") == second
    page.get_by_text("Export", exact=True).click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Figures (CSV)").wait_for(state="hidden")
    crumbs = page.locator("[data-part=crumbs] li")
    assert crumbs.count() == 4
    page.keyboard.press("Escape")
    wait_until(lambda: crumbs.count() == 3, "a closed menu keeps Escape")


class Untold(MovingFleet):
    """One GPU whose size and use nobody tells."""

    def tree(self) -> Any:
        found = super().tree()
        self._figures[2]["used"] = None  # the inner figures are the same
        return found


def test_a_device_of_unknown_size_an_instance_on_two_gpus_and_another_screen(open_page: OpenPage) -> None:
    fleet = Untold(2)
    rename(fleet, 2, size=None)
    one, *_, last = places(fleet, "instance")
    rename(fleet, last, key=fleet._nodes[one][2])
    page = open_page()
    double = opened(page, fleet)
    instances = len(places(fleet, "instance")) - 1
    page.locator("[data-figure=pressure] .value span").get_by_text(f"/ {instances} instances", exact=True).wait_for()
    page.locator("[data-part=stage]").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("[data-part=live-text]")
    said.filter(has_text="In use unknown").filter(has_text="Size unknown").wait_for(state="attached")
    before = told(page, "wall.range")[1]
    fleet._values[fleet._gpus[0][1].stop - 2] += 60_000
    double.tick()
    wait_until(lambda: told(page, "wall.range")[1] == before + 60_000, "axes do not follow")
    session = page.context.new_cdp_session(page)
    session.send(
        "Emulation.setDeviceMetricsOverride", {"width": 1600, "height": 1000, "deviceScaleFactor": 2, "mobile": False}
    )
    double.tick()
    wait_until(lambda: told(page, "wall.canvas.width") > 1.5 * told(page, "wall.width"), "it stays coarse")


def test_names_that_are_formulas_or_no_xml_leave_as_text(open_page: OpenPage, tmp_path: Path) -> None:
    fleet = MovingFleet(1)
    name = "=cmd|' /C calc'!A0<b>&\x01\"，"
    rename(fleet, places(fleet, "tenant")[0], label=name)
    page = open_page()
    opened(page, fleet, f"{WALL}?by=tenant")
    found = {}
    for button in ("Drawing", "Figures"):
        page.get_by_text("Export", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        download.value.save_as(tmp_path / button)
        found[button] = (tmp_path / button).read_text()
    texts = [node.text or "" for node in ElementTree.fromstring(found["Drawing"]).iter() if node.tag.endswith("text")]
    assert any(text.startswith("=cmd|' /C calc'!A0<b>&\"，") for text in texts)
    assert re.search(r',"\'=cmd\|', found["Figures"])


def test_a_frame_that_comes_after_going_live_again_is_not_shown(open_page: OpenPage) -> None:
    fleet = MovingFleet(1)
    page = open_page()
    double = opened(page, fleet)
    held: list[Route] = []
    page.route("**/gpu-memory/frame/**", lambda route: held.append(route))
    slider = page.get_by_label("Moment of the last 15 minutes")
    slider.fill("-300")
    wait_until(lambda: bool(page.evaluate("true") and held), "the frame is not asked for")
    wait_until(lambda: "at=" in page.evaluate("location.search"), "the address does not say when")
    page.get_by_role("button", name="Back to live").click()
    wait_for_pill(page, "live")
    double.tick()
    wait_until(lambda: told(page, "now.tree.seq") == double.seq, "it does not go on")
    held[0].fulfill(json={**double.frame(), "at": 1})
    double.tick()
    wait_until(lambda: told(page, "now.tree.seq") == double.seq, "it does not go on")
    assert told(page, "now.tree.at") > 1
    assert "at=" not in page.url
    assert slider.input_value() == "0"


def test_a_tenant_in_a_node_and_in_chinese(open_page: OpenPage, shoot: Shoot) -> None:
    tenant("acme", ada=TenantRole.VIEWER)
    fleet = MovingFleet(9)
    page = open_page(theme="dark", language="zh-hans")
    opened(page, fleet, f"/t/acme/gpu-memory/?scope=node:{fleet._nodes[1][2]}", name="ada")
    page.locator("[data-part=crumbs] li").nth(1).wait_for()
    page.locator(".flame-history:not([hidden])").wait_for()
    assert page.locator("h1").count() == 1  # of a node's processes a tenant is told nothing, nor is anything asked for
    assert page.locator("[data-part=processes]").is_hidden()
    shoot(page, "flame-chinese")
    words = page.evaluate("JSON.parse(document.getElementById('flame-strings').textContent)")
    english = {word for word in _words(words) if re.fullmatch(r"[A-Za-z][a-z ]+", word)}
    assert english <= {"Asia/Shanghai"}, english


def _words(told: Any) -> list[str]:
    if isinstance(told, dict):
        return [word for value in told.values() for word in _words(value)]
    return [str(told)]

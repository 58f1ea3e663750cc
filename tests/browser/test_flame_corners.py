"""Where the wall was wrong once or could be: icicle, drawn zoom, topologies, strange devices and names, races."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from xml.etree import ElementTree

import msgspec
import pytest

from gpupool.policies.memory_summary import summarise
from gpupool.policies.memory_tree import build_tree
from gpupool.policies.memory_wire import frame_of
from tenants.models import TenantRole
from tests.browser.conftest import Web
from tests.browser.walk import wait_for_pill
from tests.browser.walls import WallDouble, signed_in, told
from tests.dashboard.live.memory_examples import MovingFleet
from tests.dashboard.people import person, tenant
from tests.gpupool.policies.test_memory_tree import GIB, WHO, a_claim, a_device, an_instance
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


READ = """async (frame) => {
  const script = document.querySelector("script[src*=flame]").src;
  const load = (name) => import(script.replace("page.js", name));
  const [{ Tree }, { summarise }, { facts }] = await Promise.all(["tree.js", "figures.js", "tooltip.js"].map(load));
  const tree = new Tree(frame);
  const all = [...tree.kind.keys()];
  const of = (kind) => all.filter((place) => tree.kind[place] === kind).map((place) => tree.inUse(place));
  const before = { pool: of(0), gpus: of(2), instances: of(4), reserved: summarise(tree).reserved };
  before.told = facts(tree, 2).map((fact) => fact.join(" "));
  tree.values[0] += 256;
  tree.settle();
  return { ...before, then: of(2) };
}"""


def test_in_use_and_reserved_are_what_the_server_says(open_page: OpenPage) -> None:
    told = an_instance(7, weights=6 * GIB, kv_capacity=60 * GIB, kv_used=0.05)  # holds all of its cache
    silent = an_instance(8)  # it is measured, and tells nothing of what it has
    hidden = an_instance(9, weights=4 * GIB)  # nobody tells what its processes have
    over = an_instance(10, weights=6 * GIB)  # has more than it claims
    sizes = {told: 76, silent: 4, over: 12}
    by: dict[str, int | None] = {str(one.instance_id): size * GIB for one, size in sizes.items()}
    devices = [
        a_device(device_id=UUID(int=20 + at), index=at, by_instance=by, used=used, health="ok" if at else "failed")
        for at, used in enumerate((77 * GIB, 78 * GIB, None, 12 * GIB))
    ]
    claims = [
        a_claim(one, gib, on=UUID(int=20 + at))
        for at, one, gib in ((0, told, 78), (1, silent, 10), (1, hidden, 20), (2, silent, 10), (3, over, 10))
    ]
    tree = build_tree(devices, claims, {one.instance_id: one for one in (told, silent, hidden, over)}, WHO)
    page = open_page()
    opened(page, MovingFleet(1))
    found = page.evaluate(READ, msgspec.to_builtins(frame_of(tree, epoch=1, seq=1, at=datetime.now(tz=UTC))))
    assert found["gpus"] == [77 * 1024, 78 * 1024, None, 12 * 1024]
    assert found["instances"] == [76 * 1024, 4096, None, 4096, 12 * 1024]
    assert found["pool"] == [None]
    assert found["reserved"] == 128 * 1024 == summarise(tree).allocated_mib
    assert "In use 77 GiB, 96.3 %" in found["told"]
    assert "KV cache in use 5.0 %" in found["told"]
    assert "Health Failed" in found["told"]
    assert found["then"][0] == 77 * 1024 + 256


def test_two_tenants_of_one_name_are_two_and_a_topology_leaves_chart_canvas_and_focus(open_page: OpenPage) -> None:
    fleet = MovingFleet(1)
    one, other, third = places(fleet, "tenant")
    rename(fleet, other, label=fleet._nodes[one][3])
    page = open_page()
    double = opened(page, fleet, f"{WALL}?by=tenant&scope=gpu:{fleet._nodes[2][2]}")
    page.locator(".flame-history .scatterlayer").wait_for(state="attached")
    page.route("**/gpu-memory/history/**", lambda route: None)  # every 15 s it is drawn anew
    legend = page.locator("[data-part=legend] button")
    assert legend.count() == 3
    assert len(set(page.evaluate("[...gatehouseFlame.now.slots.values()]"))) == 3
    crumb = page.locator("[data-part=crumbs]").get_by_role("button", name="sim-h100-01")
    crumb.focus()
    page.evaluate(
        """() => { window.drawn = 0; const { react } = Plotly; const { wall } = gatehouseFlame;
        window.painter = wall.painter; window.painted = wall.canvas.toDataURL();
        Plotly.react = (...given) => { window.drawn += 1; return react.apply(Plotly, given); }; }"""
    )
    rename(fleet, third, label="somebody else")
    double.tick()
    wait_until(lambda: told(page, "stats.keyframes") == 2, "the other topology does not arrive")
    wait_until(lambda: legend.filter(has_text="somebody else").count() == 1, "the legend keeps the name of before")
    assert page.evaluate("window.drawn") == 0
    assert page.locator(".loading .flame-history").count() == 0  # nor is it asked for as for another device
    assert page.evaluate("gatehouseFlame.wall.painter === window.painter")
    assert page.evaluate("gatehouseFlame.wall.canvas.toDataURL() !== window.painted")
    assert crumb.evaluate("(button) => button === document.activeElement")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement === gatehouseFlame.wall.stage")


def test_the_past_is_walked_through_beside_a_history_without_figures(open_page: OpenPage) -> None:
    fleet = MovingFleet(1)
    page = open_page()
    double = opened(page, fleet)
    page.evaluate("(() => { const now = Date.now; Date.now = () => now() + 3_000_000; })()")  # a clock that is wrong
    double.tick()
    wait_until(lambda: told(page, "now.tree.seq") == double.seq, "it does not go on")
    page.route("**/gpu-memory/history/**", lambda route: route.fulfill(json={"series": {}, "start": 0, "step": 60}))
    page.get_by_role("button", name="1 h").click()
    page.get_by_text("Nothing has been recorded for this GPU").wait_for()
    slider = page.get_by_label("Moment of the last 15 minutes")
    slider.fill("-300")
    wait_until(lambda: told(page, "now.tree.seq") == 1, "the frame of then is not shown")
    wait_until(lambda: "at=" in page.evaluate("location.search"), "the address does not say when")
    at = int(told(page, "state.at"))
    assert abs(at + 300 - datetime.now(tz=UTC).timestamp()) < 60
    page.evaluate("(() => { const now = Date.now; Date.now = () => now() + 400_000; })()")  # it has been looked at
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert int(told(page, "state.at")) == at - 5
    assert int(slider.input_value()) < -690
    page.get_by_role("button", name="Back to live").click()
    wait_for_pill(page, "live")


def test_rows_of_one_node_are_not_under_another_and_leave_the_focus_where_it_is(open_page: OpenPage) -> None:
    fleet = MovingFleet(9)
    page = open_page()
    opened(page, fleet)
    asked: list[Route] = []
    page.route("**/gpu-memory/processes/**", lambda route: asked.append(route))
    board = "<div tabindex='0' id='board'><table><tbody><tr><td>{}</td></tr></tbody></table></div>"
    first, second = places(fleet, "node")
    page.evaluate(f"gatehouseFlame.wall.on.enter({first})")
    wait_until(lambda: bool(page.evaluate("true") and asked), "the processes are not asked for")
    asked.pop().fulfill(body=board.format("of the first"))
    page.locator("#board").focus()
    asked.clear()  # after 10 s it asks by itself
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: bool(page.evaluate("true") and asked), "the processes are not asked for again")
    asked.pop().fulfill(body=board.format("of the first, later"))
    page.get_by_text("of the first, later").wait_for()
    assert page.evaluate("document.activeElement.id") == "board"
    wait_until(  # not a double click
        lambda: page.evaluate(f"(gatehouseFlame.wall.on.enter({second}), gatehouseFlame.now.scope)") == second,
        "the other node is not entered",
    )
    wait_until(lambda: bool(page.evaluate("true") and asked), "the other node's processes are not asked for")
    assert page.locator("#board").count() == 0


def _words(told: Any) -> list[str]:
    if isinstance(told, dict):
        return [word for value in told.values() for word in _words(value)]
    return [str(told)]

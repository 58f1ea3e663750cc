"""The wall of GPU memory in Chromium: zoom, keyboard, address, search, pause, a quarter of an hour back, exports."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import wait_for_pill
from tests.browser.walls import WallDouble, signed_in, told
from tests.dashboard.live.memory_examples import MovingFleet
from tests.dashboard.people import person
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
WALL = "/console/gpu-memory/"


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


@pytest.fixture
def fleet() -> MovingFleet:
    return MovingFleet(16)


def opened(page: "Page", fleet: MovingFleet, address: str = WALL) -> WallDouble:
    """The wall, live, after some seconds of the fleet."""
    double = WallDouble(page, fleet)
    signed_in(page, "olga")
    page.goto(address)
    wait_for_pill(page, "live")
    page.locator("[data-part=filled]").wait_for()
    for _ in range(3):
        double.tick()
    wait_until(lambda: told(page, "stats.updates") >= 4, "frames do not arrive")
    return double


def crumbs(page: "Page") -> list[str]:
    return page.locator("[data-part=crumbs] li").all_inner_texts()


def click_on(page: "Page", place: str) -> None:
    """A click into the middle of what an expression names: a place of the tree."""
    wait_until(  # not a double click
        lambda: page.evaluate("performance.now() - (window.clickedAt ?? -1000) > 360"), "time stands still"
    )
    x, y = page.evaluate(
        f"""() => {{ const {{ wall }} = gatehouseFlame; const {{ tree }} = gatehouseFlame.now;
        const rect = wall.rectOf({place});
        return [wall.margins.left + rect.left + rect.width / 2, wall.margins.top + rect.top + rect.height / 2]; }}"""
    )
    # Where it is once it stands still: what is drawn beside it moves it, too.
    page.locator("[data-part=stage]").click(position={"x": x, "y": y})
    page.evaluate("window.clickedAt = performance.now()")


@pytest.mark.parametrize(("theme", "by"), [("light", "segment"), ("dark", "tenant")])
def test_the_wall_is_drawn_and_moves(
    open_page: OpenPage, shoot: Shoot, fleet: MovingFleet, theme: str, by: str
) -> None:
    page = open_page(theme=theme)
    double = opened(page, fleet, f"{WALL}?by={by}")
    assert crumbs(page) == ["All GPUs"]
    assert page.get_by_text("Simulated", exact=True).is_visible()
    values = f"{page.locator('[data-figure=kv] b').inner_text()}"
    picture = "gatehouseFlame.wall.canvas.toDataURL()"
    before = page.evaluate(picture)
    double.tick(30)
    wait_until(lambda: told(page, "now.tree.seq") == double.seq, "its frame does not arrive")
    wait_until(lambda: page.evaluate(picture) != before, "the canvas stays as it was")
    assert values != ""
    assert told(page, "stats.resyncs") == 0
    shown = page.evaluate("Array.from(gatehouseFlame.now.tree.values)")
    real = double.fleet.tree().values
    assert all(abs(one - other) * 200 <= max(other, 1) for one, other in zip(shown, real, strict=True))
    shoot(page, f"flame-{theme}-{by}")
    assert violations(page) == []
    contrast, *between = page.evaluate(
        """async () => {
          const script = document.querySelector("script[src*=flame]").src;
          const { contrast } = await import(script.replace("page.js", "colours.js"));
          return gatehouseFlame.now.palette.styles.flatMap(({ base, line, text }) =>
            [base, line].filter(Boolean).map((colour) => [contrast(text, colour), text, colour])
          ).sort((one, other) => one[0] - other[0])[0];
        }"""
    )
    assert contrast >= 4.5, between  # axe does not look into a canvas


def test_clicks_zoom_in_one_level_at_a_time_and_escape_goes_up(
    open_page: OpenPage, shoot: Shoot, fleet: MovingFleet
) -> None:
    page = open_page()
    opened(page, fleet)
    click_on(page, "2")  # its first GPU, in the band of the first node
    assert crumbs(page) == ["All GPUs", "sim-h100-01"]
    assert "scope=node%3A" in page.url
    click_on(page, "3")  # its first tenant
    assert crumbs(page) == ["All GPUs", "sim-h100-01", "GPU 0"]
    click_on(page, "3")
    tenant = fleet.tree().nodes[3][3]
    assert crumbs(page)[3] == tenant
    shoot(page, "flame-tenant-scope")
    page.keyboard.press("Escape")
    assert crumbs(page) == ["All GPUs", "sim-h100-01", "GPU 0"]
    page.go_back()
    wait_until(lambda: len(crumbs(page)) == 4, "back does not undo a step")
    page.go_forward()
    wait_until(lambda: len(crumbs(page)) == 3, "forward does not repeat a step")
    page.get_by_role("button", name="All GPUs").click()
    assert crumbs(page) == ["All GPUs"]
    page.reload()
    page.locator("[data-part=filled]").wait_for()
    assert crumbs(page) == ["All GPUs"]


def test_keyboard_moves_enters_goes_up_and_pauses(open_page: OpenPage, fleet: MovingFleet) -> None:
    page = open_page()
    double = opened(page, fleet)
    stage = page.locator("[data-part=stage]")
    stage.focus()
    page.keyboard.press("ArrowRight")
    assert told(page, "wall.focused") == 2
    assert page.locator("[data-part=live-text]").inner_text().startswith("GPU 0: Memory 79 GiB")
    page.keyboard.press("ArrowRight")
    assert "GPU 1" in (stage.get_attribute("aria-description") or "")
    page.keyboard.press("ArrowDown")
    assert told(page, "now.tree.kind[gatehouseFlame.wall.focused]") == 3
    assert (stage.get_attribute("aria-description") or "").endswith(", GPU 1, Node sim-h100-01.")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # the first band: there is nothing above
    page.keyboard.press("Enter")
    assert crumbs(page)[-1] == "GPU 1"
    page.keyboard.press("Escape")
    assert crumbs(page)[-1] == "sim-h100-01"
    assert (stage.get_attribute("aria-description") or "").startswith("The wall shows node sim-h100-01, ")
    page.keyboard.press("Space")
    wait_for_pill(page, "paused")
    assert page.locator("#as-of").inner_text().startswith("as of ")
    frames = told(page, "stats.updates")
    double.tick()
    page.keyboard.press("Space")
    wait_for_pill(page, "live")
    wait_until(lambda: told(page, "stats.updates") > frames, "it does not go on")


def test_the_largest_hole_says_where_it_is_and_leads_there_and_to_its_row(
    open_page: OpenPage, fleet: MovingFleet
) -> None:
    page = open_page()
    opened(page, fleet)
    tree = fleet.tree()
    left = {at: told["schedulable"] or 0 for at, told in tree.figures.items() if "schedulable" in told}
    most = max(left, key=lambda at: (left[at], -at))
    node, index = tree.nodes[most][3].split("/")
    hole = page.locator("[data-part=hole]")
    assert hole.inner_text() == f"{node} · GPU {index}"
    hole.focus()
    page.keyboard.press("Enter")
    assert crumbs(page) == ["All GPUs", node, f"GPU {index}"]
    assert page.evaluate("document.activeElement === gatehouseFlame.wall.stage")
    page.locator("[data-part=table] summary").click()
    row = page.locator("[data-part=table] tbody tr", has_text="the largest hole")
    row.wait_for()
    assert row.inner_text().split("\t")[0] == f"GPU {index}"


def test_search_and_pointer_leave_bright_what_belongs_together(
    open_page: OpenPage, shoot: Shoot, fleet: MovingFleet
) -> None:
    page = open_page()
    double = opened(page, fleet)
    bright = (
        "[...gatehouseFlame.now.tree.kind].filter((kind, at) => kind === 3 && !gatehouseFlame.wall.dimmed[at]).length"
    )
    tenants = [node for node in fleet.tree().nodes if node[1] == "tenant"]
    slug = tenants[0][3]
    page.get_by_role("searchbox").fill(slug)
    assert page.evaluate(bright) == sum(node[3] == slug for node in tenants)
    assert f"q={slug}" in page.url
    shoot(page, "flame-search")
    page.get_by_role("searchbox").fill("no such")
    page.get_by_text("Nothing of that name is on the wall.").wait_for()
    page.get_by_role("searchbox").fill("")
    assert told(page, "wall.dimmed") is None
    page.locator("[data-part=legend] button").nth(1).hover()
    wait_until(lambda: told(page, "wall.dimmed") is not None, "the legend highlights nothing")
    page.mouse.move(5, 5)
    x, y = page.evaluate(
        """() => { const { wall } = gatehouseFlame; const rect = wall.rectOf(3);
        const box = wall.stage.getBoundingClientRect();
        return [box.left + wall.margins.left + rect.left + 3, box.top + wall.margins.top + rect.top + 3]; }"""
    )
    page.mouse.move(x, y)
    page.locator(".flame-tip").wait_for()
    before = page.locator(".flame-tip").inner_text()
    assert slug in before
    double.tick(30)
    wait_until(lambda: page.locator(".flame-tip").inner_text() != before, "a pointer that rests sees old figures")
    wait_until(lambda: told(page, "wall.dimmed") is not None, "the pointer highlights nothing")
    assert page.evaluate(bright) == sum(node[3] == slug for node in tenants)


def mends_a_lost_frame(page: "Page", double: WallDouble) -> None:
    double.skip()
    double.tick()
    wait_until(lambda: told(page, "stats.resyncs") == 1, "the gap is not noticed")
    wait_until(lambda: told(page, "stats.keyframes") == 2, "no keyframe is asked for")
    double.tick()
    wait_until(
        lambda: page.evaluate("gatehouseFlame.now.tree.seq") == double.seq, "it does not go on after the keyframe"
    )


def test_a_quarter_of_an_hour_back_and_live_again_and_a_moment_that_is_gone(
    open_page: OpenPage, shoot: Shoot, fleet: MovingFleet
) -> None:
    page = open_page(theme="dark", refusals=True)
    opened(page, fleet)
    slider = page.get_by_label("Moment of the last 15 minutes")
    slider.fill("-300")
    wait_for_pill(page, "paused")
    page.get_by_role("button", name="Back to live").wait_for()
    wait_until(lambda: told(page, "now.tree.seq") == 1, "the frame of then is not shown")
    assert "at=" in page.url
    shoot(page, "flame-scrub")
    assert violations(page) == []
    address = page.url
    page.get_by_role("button", name="Back to live").click()
    wait_for_pill(page, "live")
    assert "at=" not in page.url
    page.goto(address)
    wait_for_pill(page, "paused")
    assert int(page.get_by_label("Moment of the last 15 minutes").input_value()) < -250
    page.route("**/gpu-memory/frame/**", lambda route: route.fulfill(status=422, json={"detail": "Frames are gone."}))
    page.get_by_label("Moment of the last 15 minutes").fill("-600")
    page.get_by_role("alert").get_by_text("Frames are gone.").wait_for()
    page.get_by_role("button", name="Back to live").click()
    page.get_by_role("button", name="Tenant", exact=True).click()
    # Whoever looks at the past hears nothing on the channel: that they may look no more is said by the next answer.
    page.route("**/gpu-memory/frame/**", lambda route: route.fulfill(status=403, content_type="text/html", body="no"))
    page.get_by_label("Moment of the last 15 minutes").fill("-500")
    wait_for_pill(page, "denied")
    assert page.locator("[data-part=stage]").is_hidden()
    page.go_back()  # to where it was live
    wait_until(lambda: "at=" not in page.url, "the address of before")
    wait_for_pill(page, "denied")
    assert page.locator("[data-part=stage]").is_hidden()


def test_a_lost_frame_is_mended_and_the_wall_is_a_picture_a_drawing_and_figures(
    open_page: OpenPage, fleet: MovingFleet, tmp_path: Path
) -> None:
    page = open_page()
    mends_a_lost_frame(page, opened(page, fleet))
    found = {}
    for name, kind in (("Picture", "png"), ("Drawing", "svg"), ("Figures", "csv")):
        page.get_by_text("Export", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        assert download.value.suggested_filename.endswith(f".{kind}")
        download.value.save_as(tmp_path / kind)
        found[kind] = (tmp_path / kind).read_bytes()
        assert page.get_by_text("Export", exact=True).evaluate("e => e === document.activeElement")
    assert found["png"].startswith(b"\x89PNG")
    drawing = found["svg"].decode()
    assert drawing.startswith("<svg xmlns=")
    assert "sim-h100-01" in drawing
    assert drawing.count("<rect") > 300
    lines = found["csv"].decode().splitlines()
    assert lines[0] == "time,node,gpu,tenant,instance,model,version,segment,mib"
    assert len(lines) - 1 == len(fleet.tree().values)


def test_the_same_tree_is_a_table_where_names_that_are_markup_stay_text(
    open_page: OpenPage, fleet: MovingFleet
) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    fleet._nodes[:] = [(*node[:3], evil, node[4]) if node[1] == "tenant" else node for node in fleet._nodes]
    page = open_page()
    opened(page, fleet, f"{WALL}?by=tenant")
    page.locator("[data-part=table] summary").click()
    rows = page.locator("[data-part=table] tbody tr")
    rows.nth(49).wait_for()
    assert rows.count() == 50
    assert rows.first.inner_text().split("\t")[:2] == ["sim-h100-01", "node"]
    assert "Schedulable" in rows.nth(1).inner_text()  # of a GPU all that its tooltip says
    page.locator("[data-part=table]").get_by_role("button", name="Next").click()
    wait_until(lambda: page.locator("[data-told]").inner_text().startswith("51 to 100 of "), "the next page is shown")
    page.get_by_role("searchbox").fill("sim-h100-02")
    wait_until(lambda: page.locator("[data-told]").inner_text().startswith("1 to 50"), "the search finds nothing")
    assert rows.first.inner_text().split("\t")[0] == "sim-h100-02"
    page.locator("[data-part=table] tbody").get_by_text(evil).first.wait_for()
    page.get_by_role("button", name="Next").focus()
    page.get_by_role("searchbox").evaluate(
        "e => { e.value = 'sim-h100-02 nothing'; e.dispatchEvent(new Event('input')) }"
    )
    page.locator("[data-part=table] [role=region]:focus").wait_for()  # there is no other page to go to
    assert page.evaluate("window.hacked") is None
    assert violations(page) == []


def test_narrow_and_in_chinese(open_page: OpenPage, shoot: Shoot, fleet: MovingFleet) -> None:
    page = open_page(width=390, height=844, language="zh-hans", theme="dark")
    opened(page, fleet)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # What is out of sight is on paper too; looked at in the same turn, for what is drawn later leaves it out again.
    print_it = "(scrollTo(0, 0), dispatchEvent(new Event('beforeprint')), gatehouseFlame.wall.late.size)"
    assert page.evaluate(print_it) == 0
    shoot(page, "flame-narrow")

"""Live channels in Chromium: tabs that are hidden, left and come back to, a server that goes, people who log out."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone

from dashboard.live import hub
from dashboard.live.topics import Topic
from gpupool.models import Device, Instance, InstanceLog, Lease, Node
from tenants.actor import SYSTEM
from tenants.models import TenantRole, TenantState
from tenants.services import change_person, set_tenant_state
from tests.browser.conftest import DEADLINE_MS, Web
from tests.browser.walk import log_in, signed_in, wait_for_pill
from tests.dashboard.people import person, pool, tenant
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
SOCKETS = """
window.sockets = [];
const Native = window.WebSocket;
window.WebSocket = class extends Native {
  constructor(...parts) { super(...parts); window.sockets.push(this); this.said = []; }
  send(text) { this.said.push(JSON.parse(text)); super.send(text); }
};
window.ticks = [];
const nativeInterval = window.setInterval;
window.setInterval = (run, ...more) => {
  window.ticks.push(run);
  return nativeInterval(run, ...more);
};
"""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def page(open_page: OpenPage, web: Web) -> "Page":
    """The overview, live; its sockets are kept in `sockets`."""
    person("olga", platform_role="superuser")
    pool()
    made = open_page()
    made.add_init_script(SOCKETS)
    log_in(made, "olga")
    wait_for_pill(made, "live")
    return made


def watched() -> set[Topic]:
    """What the web process's hub watches for anybody; those of servers before it may have ended in the middle of it."""
    running = [one for loop, one in tuple(hub._hubs.items()) if loop.is_running()]
    return {topic for one in running for topic in tuple(one._watched)}


def test_a_hidden_tab_watches_nothing_until_it_is_seen_again(page: "Page") -> None:
    assert watched() == {Topic("fleet", "")}
    page.evaluate(HIDE, True)
    wait_for_pill(page, "paused")
    assert page.locator("#live").inner_text().startswith("Paused · as of ")
    wait_until(lambda: not watched(), "a hidden tab unsubscribes")
    page.evaluate(HIDE, False)
    wait_for_pill(page, "live")
    assert page.evaluate("sockets.length") == 1  # over the socket that it has
    assert page.evaluate("sockets[0].said.map((said) => said.op)") == ["subscribe", "unsubscribe", "subscribe"]


def test_a_tab_that_was_hidden_for_a_while_keeps_its_socket(page: "Page") -> None:
    """Nothing was said meanwhile, and timers run before anything can be."""
    page.evaluate(HIDE, True)
    wait_for_pill(page, "paused")
    page.evaluate("() => { const now = performance.now.bind(performance); performance.now = () => now() + 30000; }")
    # In one turn, so that no answer comes in between.
    page.evaluate(f"() => {{ ({HIDE})(false); for (const run of ticks) run(); }}")
    assert page.evaluate("sockets.map((socket) => socket.readyState)") == [1]
    wait_for_pill(page, "live")


def test_a_page_that_comes_back_from_the_back_forward_cache_goes_on(page: "Page") -> None:
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
    wait_for_pill(page, "paused")
    assert page.evaluate("sockets[0].readyState") >= 2  # an open one would keep the page out of that cache
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    wait_for_pill(page, "live")
    assert page.evaluate("sockets.length") == 2


def test_a_socket_that_says_nothing_any_more_is_given_up(page: "Page") -> None:
    """As after a sleep: it looks open, and nothing comes."""
    page.evaluate(
        """() => {
          const now = performance.now.bind(performance);
          const began = now();
          // So that nobody waits ten seconds; the next one may take its time to connect.
          performance.now = () => (sockets.length > 1 ? now() : began + (now() - began) * 10);
          sockets[0].send(JSON.stringify({ op: "unsubscribe", n: 1 }));  // behind the page's back
        }"""
    )
    wait_until(lambda: page.evaluate("sockets.length") == 2, "a new socket")
    wait_for_pill(page, "live")


def test_who_logs_out_elsewhere_is_told_and_the_page_stops_trying(page: "Page", shoot: Shoot) -> None:
    SessionStore(Session.objects.get().session_key).flush()
    wait_for_pill(page, "denied")
    page.get_by_text("You were logged out.", exact=True).wait_for()
    shoot(page, "overview-denied")
    page.evaluate("window.dispatchEvent(new Event('online'))")
    assert page.evaluate("sockets.length") == 1


def test_who_was_logged_out_while_the_server_was_away_finds_out(
    open_page: OpenPage, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    person("olga", platform_role="superuser")
    page = open_page(refusals=True)
    page.add_init_script(SOCKETS)
    log_in(page, "olga")
    wait_for_pill(page, "live")
    web.stop()
    wait_for_pill(page, "reconnecting")
    SessionStore(Session.objects.get().session_key).flush()
    web.start()
    wait_for_pill(page, "denied")
    page.get_by_text("You were logged out.", exact=True).wait_for()


def test_rows_of_lists_and_of_a_nodes_page_change_by_themselves(open_page: OpenPage, shoot: Shoot, web: Web) -> None:
    person("olga", platform_role="superuser")
    made = pool(state="loading")
    page = open_page()
    log_in(page, "olga", then="/console/instances/")
    wait_for_pill(page, "live")
    row = page.locator(f'[data-row="{made.instance.pk}"]')
    Instance.objects.update(state="failed", reason="out of memory", running_requests=37)
    row.locator('.pill[data-value="failed"]').wait_for()
    row.get_by_text("out of memory").wait_for()
    row.get_by_text("37").wait_for()
    assert row.get_by_role("link", name="qwen3-8b").first.is_visible()  # what is not told stays
    shoot(page, "instances-live")
    page.goto("/console/nodes/")
    wait_for_pill(page, "live")
    Node.objects.update(state="unreachable")
    node = page.locator(f'[data-row="{made.device.node_id}"]')
    node.locator('.pill[data-value="unreachable"]').wait_for()
    Instance.objects.all().delete()
    node.get_by_text("0", exact=True).wait_for()
    Node.objects.update(state="online")
    page.goto(f"/console/nodes/{made.device.node_id}/")
    wait_for_pill(page, "live")
    lost = page.get_by_role("link", name="Declare lost")
    assert not lost.is_visible()
    Node.objects.update(state="unreachable")
    lost.wait_for()
    Node.objects.update(state="online")
    page.locator('h1 + [data-row] .pill[data-value="online"]').wait_for()
    assert not lost.is_visible()
    Device.objects.update(memory_used_bytes=61 * 2**30, observed_at=timezone.now())
    page.locator(f'[data-row="{made.device.pk}"]').get_by_text("61.0 GiB").wait_for()
    shoot(page, "node-live")
    for rows in (Lease, Device, Node):
        rows.objects.all().delete()
    page.get_by_text("It no longer exists.").wait_for()
    assert page.locator("#live").get_attribute("data-value") == "stale"


@pytest.mark.parametrize("address", ["/console/instances/", "/console/nodes/{node}/"])
def test_rows_that_one_may_no_longer_see_do_not_stay_on_the_screen(open_page: OpenPage, web: Web, address: str) -> None:
    person("otto", platform_role="superuser")
    made = pool()
    olga = person("olga", platform_role="superuser")
    page = open_page()
    log_in(page, "olga", then=address.format(node=made.device.node_id))
    wait_for_pill(page, "live")
    page.locator("[data-row]").first.wait_for()
    assert page.locator("#live + [data-live-why][role=status]").inner_text() == ""  # there before anything is said
    change_person(olga.pk, platform_role="", actor=SYSTEM)
    wait_for_pill(page, "denied")
    page.get_by_text("You may no longer see this").wait_for()
    assert page.locator("[data-row]").count() == 0
    assert page.locator(".stale").count() == 0
    assert page.locator("[data-live-why]").inner_text() == "You were logged out."


def test_what_nobody_watches_in_a_suspended_tenant_may_be_seen_all_the_same(open_page: OpenPage, web: Web) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    page = open_page()
    log_in(page, "ada", then="/t/acme/limits/")
    page.locator('[data-limits-state][data-value="live"]').wait_for()
    set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    page.get_by_text("This tenant is suspended: nothing happens in it.").wait_for()
    assert page.get_by_text("Nothing limits you").is_visible()


def test_an_instance_and_its_log_go_from_the_screen_with_the_right_to_see_them(open_page: OpenPage, web: Web) -> None:
    person("olga", platform_role="superuser")
    made = pool()
    InstanceLog.objects.create(
        instance=made.instance, wanted_until=timezone.now(), told_at=timezone.now(), text="a prompt"
    )
    page = open_page()
    log_in(page, "olga", then=f"/console/instances/{made.instance.pk}/")
    page.get_by_role("link", name="Read the log").click()
    page.get_by_text("a prompt").wait_for()
    SessionStore(Session.objects.get().session_key).flush()
    page.get_by_text("You may no longer see this").wait_for()
    assert page.get_by_text("a prompt").count() == 0
    assert page.get_by_text("Reconnecting").count() == 0


def test_an_instance_that_is_gone_is_said_to_be(open_page: OpenPage, web: Web) -> None:
    person("olga", platform_role="superuser")
    made = pool()
    page = open_page(refusals=True)
    signed_in(page, "olga")
    late: list[Route] = []
    page.route("**/js/refresh.js", lambda route: late.append(route))
    page.goto(f"/console/instances/{made.instance.pk}/", wait_until="commit")
    wait_until(
        lambda: page.query_selector(".actions [data-htmx-powered]") is not None and bool(late),
        "htmx was there before it",
    )
    late.pop().continue_()
    page.wait_for_load_state()
    stop = page.get_by_role("link", name="Drain and stop")
    stop.evaluate("node => (node.dataset.before = '')")
    claims = page.locator(".scroll-x[aria-labelledby=claims-title]")
    claims.focus()
    Instance.objects.update(running_requests=77)
    page.get_by_text("77", exact=True).wait_for()  # though the keyboard is in there
    assert stop.get_attribute("data-before") == ""  # what does not change is not put in place anew
    assert claims.evaluate("node => node === document.activeElement")
    node = claims.get_by_role("link")  # what else leads there stands above it
    node.focus()
    Instance.objects.update(running_requests=78)
    page.get_by_text("78", exact=True).wait_for()
    assert node.evaluate("node => node === document.activeElement")
    stop.focus()
    Instance.objects.update(desire="asleep")
    page.get_by_role("link", name="Wake").wait_for()
    assert stop.evaluate("node => node === document.activeElement")
    Lease.objects.all().delete()
    Instance.objects.all().delete()
    page.get_by_text("It no longer exists.").wait_for()
    assert page.locator("[data-region]").count() == 0
    with page.expect_navigation():
        page.get_by_role("link", name="All instances").click()


def test_what_went_while_a_tab_was_hidden_is_marked_when_it_is_seen_again(open_page: OpenPage, web: Web) -> None:
    person("olga", platform_role="superuser")
    made = pool()
    page = open_page()
    log_in(page, "olga", then="/console/instances/")
    wait_for_pill(page, "live")
    row = page.locator(f'[data-row="{made.instance.pk}"]')
    Instance.objects.update(running_requests=77)
    row.get_by_text("77", exact=True).wait_for()  # it was told of
    page.evaluate(HIDE, True)
    wait_for_pill(page, "paused")
    Lease.objects.all().delete()
    Instance.objects.all().delete()
    assert row.get_attribute("data-gone") is None
    page.evaluate(HIDE, False)
    page.locator(f'[data-row="{made.instance.pk}"][data-gone]').wait_for()


TAIL = """async () => {
  const { Tail } = await import("/static/js/tail.js");
  const rows = (...ids) => ids.map((id) => ({ id }));
  const tail = new Tail();
  const frames = [
    { rows: rows(1, 2), gap: false },  // begins
    { more: rows(3) },
    { rows: rows(2, 3, 4), gap: false },  // each half minute, or after some time hidden
    { rows: rows(7, 8, 9), gap: false },  // hidden for longer
    { more: [] },
    { rows: rows(20), gap: true },
  ];
  return frames.map((frame) => {
    const { fresh, gap } = tail.take(frame);
    return [fresh.map((row) => row.id), gap];
  });
}"""
BYTES = """(deadline) => new Promise((done, failed) => import("/static/js/live.js").then(({ live }) => {
  const off = live("gpumem", "cluster", {
    onFrame: () => {},
    onState: (state, at) => { if (at !== null) { off(); done(typeof at); } },
  });
  setTimeout(() => failed(new Error("no frame of bytes came")), deadline);
}))"""


def test_tails_tell_each_row_once_and_mark_what_was_left_out(page: "Page") -> None:
    assert page.evaluate(TAIL) == [
        [[1, 2], False],
        [[3], False],
        [[4], False],
        [[7, 8, 9], True],
        [[], False],
        [[20], True],
    ]
    assert page.evaluate(BYTES, DEADLINE_MS) == "number"  # when a frame of bytes came, as of any other

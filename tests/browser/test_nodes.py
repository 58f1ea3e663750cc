"""Nodes in Chromium: the list, one in both themes, taking it out of service by keyboard, and adding another."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from gpupool.models import DeviceEvent, HealingAction, Node
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in
from tests.dashboard.people import person, pool

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def node(web: Web) -> Node:
    person("olga", platform_role="operator")
    device = pool().device
    one = device.node
    one.capabilities = {
        "cgroup": {"available": True, "reason": "Instances get a control group each, with a hard limit of memory."},
        "mps": {"available": False, "reason": "nvidia-cuda-mps-control is not installed."},
    }
    one.facts, one.address, one.last_seen_at = {"os": "Linux", "kernel": "6.1"}, "10.0.0.1", timezone.now()
    one.save()
    event = DeviceEvent.objects.create(
        node=one, device=device, boot_id="b", sequence=1, source="kernel_log", kind="xid", code=79,
        text="GPU has fallen off the bus.", at=timezone.now(),
    )  # fmt: skip
    HealingAction.objects.create(
        node=one, device=device, event=event, action="reboot", state="dry_run",
        reason="XID 79: the GPU has fallen off the bus; hardware actions are switched off.",
    )  # fmt: skip
    return one


@pytest.mark.parametrize(("theme", "language", "width"), [("light", "en", 1600), ("dark", "zh-hans", 390)])
def test_nodes_are_listed_and_shown(
    open_page: OpenPage, shoot: Shoot, node: Node, theme: str, language: str, width: int
) -> None:
    page = open_page(theme=theme, language=language, width=width)
    log_in(page, "olga", then="/console/nodes/")
    shoot(page, f"nodes-{theme}-{language}")
    assert violations(page) == []
    page.get_by_role("link", name="node-1").click()
    page.get_by_text("GPU has fallen off the bus.").wait_for()
    shoot(page, f"node-{theme}-{language}")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_node_goes_into_maintenance_by_keyboard(open_page: OpenPage, shoot: Shoot, node: Node) -> None:
    page = open_page()
    log_in(page, "olga", then=f"/console/nodes/{node.pk}/")
    page.get_by_role("link", name="Maintenance").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("New fans.")
    shoot(page, "node-maintenance")
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.get_by_text("In maintenance: New fans.").wait_for()
    page.get_by_role("button", name="End maintenance").click()
    page.get_by_text("is in service again").wait_for()


def test_a_node_is_added_and_its_agents_token_copied(open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(width=390)
    log_in(page, "olga", then="/console/nodes/")
    page.get_by_role("link", name="Add a node").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("node-1")
    page.keyboard.press("Enter")
    dialog.get_by_text("There is a node node-1 already.").wait_for()
    dialog.get_by_label("Name").fill("node-2")
    page.keyboard.press("Enter")
    token = dialog.get_by_role("textbox", name="Node token").input_value()
    shoot(page, "node-added")
    assert violations(page) == []
    assert page.evaluate("document.querySelector('#sheet').scrollWidth <= document.querySelector('#sheet').clientWidth")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    dialog.locator("[data-copy='#node-command']").click()
    page.locator("#announcements", has_text="Copied").wait_for(state="attached")
    assert f"GATEHOUSE_NODE_TOKEN={token} " in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="node-2").wait_for()
    assert token not in page.content()

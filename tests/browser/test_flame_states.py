"""The wall where there is nothing to draw, on the real channel: nothing yet, first figures, no database, no rights."""

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, NoReturn

import pytest
from django.db import OperationalError

import dashboard.live.feeds.gpumem as feed
from gpupool.models import Device, Instance, Lease, Node
from tenants.models import Tenant, TenantRole, User
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in, wait_for_pill
from tests.dashboard.people import person, pool, tenant
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


def test_empty_then_filled_then_stale_then_denied(
    open_page: OpenPage, shoot: Shoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_away = Event()
    page = open_page(refusals=taken_away.is_set)
    log_in(page, "olga", then="/console/gpu-memory/")
    page.get_by_text("No device has reported yet").wait_for()
    assert violations(page) == []
    shoot(page, "flame-empty")

    made = pool()
    page.locator("[data-part=filled]").wait_for()
    # The device comes before what is claimed of it, and a frame may fall between.
    reserved = page.locator("[data-figure=reserved] .value")
    wait_until(lambda: reserved.inner_text().split() == ["24.0", "/", "80.0", "GiB"], "the claim is shown")
    assert "20 GiB in use" in page.locator("[data-figure=reserved] .under").inner_text()
    page.get_by_role("heading", name="Memory guard").wait_for()  # of the only node
    assert page.locator("strong", has_text="No engine tells of its KV cache").is_visible()
    assert page.get_by_text("Simulated", exact=True).is_hidden()
    Lease.objects.filter(device=made.device).update(memory_bytes=40 << 30)
    wait_until(
        lambda: page.locator("[data-figure=reserved] b").inner_text() == "40.0", "a larger claim does not arrive"
    )
    shoot(page, "flame-one-gpu")

    def away(**_: object) -> NoReturn:
        raise OperationalError("the database is away")

    monkeypatch.setattr(feed, "read_tree", away)
    wait_for_pill(page, "stale")
    assert page.locator("#as-of").inner_text().startswith("as of ")
    shoot(page, "flame-stale")
    monkeypatch.undo()
    wait_for_pill(page, "live")

    taken_away.set()  # it asks for a node's processes as the right to see them goes, maybe
    User.objects.update(platform_role="")
    wait_for_pill(page, "denied")
    page.get_by_text("You may no longer see this").wait_for()
    page.get_by_role("button", name="Pause").click()
    assert page.locator("[data-part=stage]").is_hidden()


def test_a_tenant_sees_its_own_and_others_as_one_block(open_page: OpenPage, shoot: Shoot) -> None:
    acme = tenant("acme", ada=TenantRole.VIEWER)
    bank = tenant("bank", bob=TenantRole.OWNER)
    made = pool()
    own = Instance.objects.create(
        version=made.version, node=made.device.node, engine="vllm", state="ready", tenant_id=acme.pk
    )
    Instance.objects.filter(pk=made.instance.pk).update(tenant_id=bank.pk)
    Lease.objects.create(
        device=made.device, holder=f"instance:{own.pk}", memory_bytes=16 << 30, lease_id=2, fencing_token=2
    )
    emptier = Node.objects.create(name="node-of-others", state="online", token_digest="e" * 64)
    Device.objects.create(
        node=emptier, stable_id="GPU-2", kind="gpu", vendor="nvidia", name="NVIDIA H200", index=1,
        memory_bytes=140 << 30, memory_used_bytes=0, health="ok", observed_at=made.device.observed_at,
    )  # fmt: skip
    page = open_page(theme="dark")
    log_in(page, "ada", then="/t/acme/gpu-memory/")
    page.locator("[data-part=filled]").wait_for()
    assert page.locator("[data-part=legend]").get_by_text("reserved by others").is_visible()
    assert "Bank" not in page.locator("main").inner_text()
    assert page.locator("[data-part=hole]").inner_text() == "node-1 · GPU 0"  # a tenant's own
    assert "node-of-others" not in page.content()
    assert Tenant.objects.get(slug="bank").pk.hex not in page.evaluate("JSON.stringify(gatehouseFlame.now.tree.ids)")
    assert violations(page) == []
    shoot(page, "flame-portal")

    Tenant.objects.filter(pk=acme.pk).update(state="suspended")
    for _ in ("while they look", "who come later"):
        page.get_by_text("This tenant is suspended: nothing happens in it.").wait_for()
        page.locator("[data-part=filled]").wait_for()  # it may be looked at, as it is
        assert page.locator("[data-part=denied]").is_hidden()
        page.reload()

"""The wall from end to end: simulated nodes tell their agents, the web process reads, and Chromium draws.

WALL_FLEET=8x8 makes the fleet that large; with GATEHOUSE_SHOTS its pictures are kept.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from pytest_django import DjangoDbBlocker

from bench.house import House, wait_until
from gpupool import services
from gpupool.models import Instance, InstanceState, MemoryFrame, Node
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in, wait_for_pill
from tests.browser.walls import told
from tests.dashboard.people import person, tenant
from tests.house import house_environ, own_database
from tests.ports import worker_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Shoot = Callable[["Page", str], None]

GIB = 1 << 30
NODES, GPUS = (int(part) for part in os.environ.get("WALL_FLEET", "2x2").split("x"))
MODELS = (("llama-3.1-8b", 26), ("qwen2.5-7b", 24), ("bge-m3", 4), ("phi-4-mini", 13), ("gemma-2-9b", 18))


@pytest.fixture(scope="module")
def house(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("wall")
    with own_database(django_db_blocker) as database_url:
        house = House(folder, house_environ(database_url))
        try:
            yield house
        finally:
            house.stop_all()


def filled() -> int:
    """Versions on the fleet, some of one tenant alone; returns how many instances there are to be."""
    person("olga", platform_role="operator")
    owners: list[Tenant | None] = [tenant("acme", ada=TenantRole.OWNER), tenant("borealis"), tenant("cobalt"), None]
    wanted = 0
    devices = NODES * GPUS
    for number, (name, gib) in enumerate(MODELS):
        for owner in owners[: 2 if devices < 16 else 4]:
            title = name if owner is None else f"{owner.slug}-{name}"
            model = services.create_model(title, actor=SYSTEM, tenant_id=None if owner is None else owner.pk)
            replicas = max(1, devices // (5 if number != 2 else 3)) if devices >= 16 else int(number < 3)
            if replicas == 0:
                continue
            services.create_version(
                model, name="v1", engine="vllm", artefact_uri=f"file:///simulated/{title}", memory_bytes=gib * GIB,
                device_kind="gpu", replicas=replicas, tenant_id=None if owner is None else owner.pk, actor=SYSTEM,
            )  # fmt: skip
            wanted += replicas
    return wanted


def visitor(chromium: "Browser", house: House, complaints: list[str], *, theme: str) -> "Page":
    context = chromium.new_context(base_url=house.web_url, viewport={"width": 1600, "height": 1240})
    context.add_cookies([{"name": "django_language", "value": "en", "url": house.web_url}])
    context.add_init_script(f"localStorage.setItem('gatehouse.theme', '{theme}')")
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
    return page


@pytest.mark.slow
@pytest.mark.shows("R153")
def test_a_simulated_fleet_is_seen_by_operator_and_tenant(chromium: "Browser", house: House, shoot: Shoot) -> None:
    wanted = filled()
    house.start("web")
    house.start("controller")
    house.start(
        "simulate-fleet", "--nodes", str(NODES), "--gpus", str(GPUS), "--kind", "h100", "--speed", "20",
        "--traffic", "0.4", "--port-first", str(worker_port(0)), "--web-url", house.web_url,
    )  # fmt: skip
    ready = Instance.objects.filter(state=InstanceState.READY)
    wait_until(lambda: ready.count() >= wanted, f"{wanted} instances are ready", seconds=120 + 2 * wanted)
    wait_until(MemoryFrame.objects.exists, "the controller records what the wall scrubs through")
    complaints: list[str] = []

    page = visitor(chromium, house, complaints, theme="light")
    log_in(page, "olga", then="/console/gpu-memory/")
    wait_for_pill(page, "live")
    page.locator("[data-part=filled]").wait_for()
    wait_until(lambda: told(page, "stats.updates") >= 5, "frames arrive")
    assert told(page, "now.tree.simulated") == "all"
    assert page.get_by_text("Simulated", exact=True).is_visible()
    running = Instance.objects.exclude(state=InstanceState.STOPPED)
    shown = "gatehouseFlame.now.tree.kind.filter((kind) => kind === 4).length"
    wait_until(lambda: page.evaluate(shown) == running.count(), "all instances are on the wall")
    wait_until(lambda: "GiB" in page.locator("[data-figure=kv] .value").inner_text(), "engines tell of their caches")
    assert page.locator("[data-part=tightest] tbody tr").count() > 0
    page.locator(".flame-history .scatterlayer").wait_for(state="attached")
    shoot(page, "fleet-wall-light")
    page.screenshot(path=os.environ["GATEHOUSE_SHOTS"] + "/fleet-fold.png") if "GATEHOUSE_SHOTS" in os.environ else None

    node = Node.objects.order_by("name").first()
    assert node is not None
    page.goto(f"/console/gpu-memory/?scope=node:{node.pk}")
    board = page.get_by_role("region", name="Memory guard")
    board.get_by_text("within its claim").first.wait_for()
    cells = board.locator("tbody tr").first.locator("td").all_inner_texts()
    assert re.search(r"\d{8}", cells[0]), cells  # the process id
    assert re.fullmatch(r"[\d.]+ GiB", cells[2]), cells  # now
    assert violations(page) == []
    shoot(page, "fleet-node-light")
    page.get_by_label("Moment of the last 15 minutes").fill("-5")
    wait_for_pill(page, "paused")
    wait_until(lambda: page.locator("[data-part=trouble]").is_hidden(), "the frame of then is there")
    page.get_by_role("button", name="Back to live").click()
    wait_for_pill(page, "live")

    member = visitor(chromium, house, complaints, theme="dark")
    log_in(member, "ada", then="/t/acme/gpu-memory/")
    wait_for_pill(member, "live")
    member.locator("[data-part=filled]").wait_for()
    wait_until(lambda: told(member, "stats.updates") >= 3, "frames arrive")
    assert "borealis" not in member.evaluate(
        "JSON.stringify([gatehouseFlame.now.tree.labels, gatehouseFlame.now.tree.extra])"
    )
    tenants = "[...new Set(gatehouseFlame.now.tree.labels.filter((_, at) => gatehouseFlame.now.tree.kind[at] === 3))]"
    assert len(member.evaluate(tenants)) == 1
    assert violations(member) == []
    shoot(member, "fleet-tenant-dark")
    print(told(page, "stats.summary()"), told(page, "now.tree.count"))
    assert complaints == []

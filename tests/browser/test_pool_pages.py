"""The pool in Chromium: instances from start to end, versions on their way to requests, rules and rights."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from core.clock import SystemClock
from gpupool import services
from gpupool.admission_settings import AdmissionSettings
from gpupool.controller.loop import Controller
from gpupool.leases.postgres import PostgresStore
from gpupool.models import (
    Device,
    DeviceEvent,
    EngineSwitch,
    HealingAction,
    Instance,
    InstanceLog,
    Lease,
    ModelVersion,
    XidRule,
)
from gpupool.policies.admission import Rule
from gpupool.policies.manifest import stated
from gpupool.policies.reconcile import Rules
from gpupool.services.aliases import create_alias
from gpupool.services.reservations import create_reservation
from gpupool.services.traces import note_state, note_wish
from gpupool.simulation.fleet import FleetSettings, SimulatedNode
from gpupool.weights.hashing import make_manifest
from tenants.actor import SYSTEM, node_actor
from tenants.models import Grant
from tests.browser.conftest import Web
from tests.browser.test_accessible import narrowed, violations, violations_in_both_themes
from tests.browser.walk import log_in
from tests.dashboard.people import person, pool, tenant
from tests.ports import worker_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]
GIB = 1 << 30
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny512.gguf"
CARD = {
    "model": "qwen3-8b",
    "version": "v1",
    "licence": "apache-2.0",
    "intended_use": "Answering questions about our products.\nNot for decisions about people.",
    "limitations": "It was tested in English and Chinese alone.",
    "base_models": [{"name": "Qwen3-8B-Base", "sha256": "b" * 64}],
    "data_sets": [
        {"name": "support-2025", "sha256": "a" * 64, "sampling_share": "0.7", "de_identification": "Names replaced."},
        {"name": "manuals", "sha256": "c" * 64, "sampling_share": "0.3", "de_identification": "None: no people."},
    ],
}


@pytest.fixture(autouse=True)
def _operator(web: Web) -> None:
    person("olga", platform_role="operator")


def _a_lively_pool() -> dict[str, str]:
    """Something of everything that the pages show; addresses that have a number, or more to show than elsewhere."""
    made, acme = pool(), tenant("acme")
    tenant("beta")
    one, node = made.instance, made.device.node
    node.facts, node.address, node.last_seen_at = {"os": "Linux"}, "10.0.0.1", timezone.now()
    node.save()
    create_alias(made.version.model_id, "qwen", actor=SYSTEM)
    create_alias(made.version.model_id, "assistant-default", actor=SYSTEM)
    create_reservation(acme.pk, devices=2, gpu_tag="H100-80GB", actor=SYSTEM)
    Lease.objects.update(tenant_id=acme.pk)
    XidRule.objects.create(code=43, action="rebuild", note="Seen with our driver.")
    event = DeviceEvent.objects.create(
        node=node, device=made.device, boot_id="b", sequence=1, source="nvml", kind="xid", code=43,
        text="GPU stopped processing", at=timezone.now(), decided=True, verdict="Its instances are rebuilt.",
    )  # fmt: skip
    HealingAction.objects.create(
        node=node, device=made.device, event=event, action="rebuild", state="done", reason="XID 43 on GPU-1.",
        outcome="One instance was rebuilt.",
    )  # fmt: skip
    Instance.objects.update(
        kv_used=0.62, kv_capacity_bytes=9 * GIB, weights_bytes=8 * GIB, compute_bytes=GIB, device_bytes=19 * GIB,
        device_peak_bytes=21 * GIB, pid=4711, slots=64, waiting_requests=1, lease_id=17, fencing_token=1742,
        load_seconds=41.5, started_from="cold", ready_at=timezone.now(), last_used_at=timezone.now(),
    )  # fmt: skip
    one.refresh_from_db()
    for state in ("requested", "placing", "loading", "ready"):
        one.state, one.reason = state, "" if state != "loading" else "Its weights are compared with their checksums."
        note_state(one, actor=node_actor(node.pk))
    note_wish(one, before="asleep", reason="Woken on the console.", actor=SYSTEM)
    InstanceLog.objects.create(
        instance=one, wanted_until=timezone.now(), told_at=timezone.now(),
        text="\n".join(f"INFO 11-30 09:{n:02}:00 engine.py: step {n}, KV cache 62.0 %" for n in range(30)),
    )  # fmt: skip
    ModelVersion.objects.update(
        card=CARD, manifest=stated(make_manifest(TINY)), engine_args={"max_model_len": 8192}, memory_bytes=24 * GIB,
        replicas=1, admitted_at=timezone.now(),
        checks={"card": {"licence": "apache-2.0", "data_sets": 2, "disclosed": True}},
    )  # fmt: skip
    return {
        "instance": f"/console/instances/{one.pk}/",
        "instance-log": f"/console/instances/{one.pk}/log/",
        "instance-stop": f"/console/instances/{one.pk}/stop/",
        "instance-new": f"/console/instances/new/?version={made.version.pk}",
        "model": f"/console/models/{made.version.model_id}/",
        "version": f"/console/versions/{made.version.pk}/",
        "version-new": f"/console/models/{made.version.model_id}/versions/new/",
        "version-admit": f"/console/versions/{made.version.pk}/admit/",
        "routing": "/console/routing/",
        "reservations": "/console/reservations/",
        "healing-actions": "/console/healing/actions/",
        "healing-events": "/console/healing/events/",
    }


def test_no_page_of_the_pool_breaks_wcag_or_needs_a_wide_screen(open_page: OpenPage, shoot: Shoot) -> None:
    pages = _a_lively_pool()
    page, found = open_page(), []
    log_in(page, "olga", then="/console/instances/")
    for name, address in pages.items():
        page.goto(address)
        page.locator("h1, h2").first.wait_for()
        shoot(page, f"pool-{name}")
        found += violations_in_both_themes(page)
        with narrowed(page):
            shoot(page, f"pool-narrow-{name}")
    assert found == []


def test_a_page_of_the_pool_in_chinese_and_dark_breaks_no_wcag_either(open_page: OpenPage, shoot: Shoot) -> None:
    pages = _a_lively_pool()
    page = open_page(theme="dark", language="zh-hans", width=390, height=844)
    log_in(page, "olga", then=pages["instance"])
    page.locator("#main").get_by_role("heading").first.wait_for()
    shoot(page, "pool-instance-dark-zh-hans")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


class _Backstage:
    """A controller and the agent of a simulated node, in a thread of their own."""

    def __init__(self, web: Web, store_url: str, folder: Path) -> None:
        node = services.create_node("sim-1", actor=SYSTEM)
        fleet = FleetSettings(
            kind="h100", gpus=2, web_url=web.url, var_dir=folder, port_first=worker_port(1_400), speed=20.0, traffic=0.0
        )
        self._node = SimulatedNode("sim-1", node.token, 0, fleet)
        self._store_url = store_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._work())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            connections.close_all()

    async def _work(self) -> None:
        store = PostgresStore(self._store_url, poll_seconds=0.05)
        controller = Controller(
            store, identity="test", lease_seconds=5.0, rules=Rules(), clock=SystemClock(), poll_seconds=0.05
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(controller.run())
                group.create_task(self._node.run())
        finally:
            await store.close()


@pytest.fixture
def backstage(web: Web, embedded_postgres_url: str, tmp_path: Path) -> Iterator[None]:
    made = _Backstage(web, embedded_postgres_url, tmp_path)
    made.start()
    try:
        # Pages that ask what fits look once.
        wait_until(Device.objects.exists, "the node tells nothing of its devices", deadline_seconds=30)
        yield
    finally:
        made.stop()


def test_an_instance_is_started_watched_read_and_stopped(open_page: OpenPage, shoot: Shoot, backstage: None) -> None:
    model = services.create_model("llama-70b", actor=SYSTEM)
    services.create_version(
        model, name="v1", engine="vllm", artefact_uri="file:///simulated/llama", memory_bytes=20 * GIB, actor=SYSTEM
    )
    page = open_page()
    log_in(page, "olga", then="/console/instances/")
    page.get_by_role("link", name="Start instances").first.click()
    page.get_by_label("Version").select_option(label="llama-70b v1")
    page.locator("#verdict").get_by_text("It fits", exact=True).wait_for()
    page.get_by_label("Replicas in all").fill("3")
    page.get_by_text("3 of 3 more find a place now").wait_for()
    shoot(page, "pool-start-three")
    page.get_by_label("Replicas in all").fill("1")
    page.get_by_text("It would go to").wait_for()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("The controller keeps 1 instance of llama-70b v1").wait_for()
    wait_until(Instance.objects.exists, "the controller does not ask for the instance")
    one = Instance.objects.get()
    page.goto(f"/console/instances/{one.pk}/")
    page.locator('[data-region="state"] [data-value="ready"]').wait_for()
    steps = page.locator(".timeline")
    steps.get_by_text("Ready", exact=True).wait_for()
    steps.get_by_text("Requested", exact=True).wait_for()
    page.get_by_role("link", name="Read the log").click()
    page.get_by_text("Nothing is computed.").wait_for()
    shoot(page, "pool-instance-ready")
    page.get_by_role("link", name="Drain and stop").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Running ones finish").wait_for()
    services.set_replicas(one.version_id, 0, actor=SYSTEM)
    dialog.get_by_role("button", name="Stop instance").click()
    page.locator('[data-region="state"] [data-value="stopped"]').wait_for()
    assert not Lease.objects.filter(released_at=None).exists()
    assert page.get_by_role("link", name="Drain and stop").count() == 0


def test_a_version_is_admitted_with_all_faults_told_at_once_and_then_serves(
    open_page: OpenPage, shoot: Shoot, settings: Settings
) -> None:
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED)
    page = open_page()
    log_in(page, "olga", then="/console/models/")
    page.get_by_role("link", name="New model").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("no*stars")
    dialog.get_by_role("button", name="Make model").click()
    dialog.get_by_text("A model needs a name of 1 to 200 printable characters").wait_for()
    dialog.get_by_label("Name", exact=True).fill("qwen3-8b")
    dialog.get_by_role("button", name="Make model").click()
    page.get_by_role("link", name="New version").first.click()
    page.get_by_label("Version").fill("v1")
    page.get_by_label("Engine", exact=True).select_option("llamacpp")
    page.get_by_label("Artefact").fill(TINY.as_uri())
    page.get_by_label("Runs on").select_option("cpu")
    page.get_by_label("Claims of each device").fill("0.25")
    page.get_by_role("button", name="Make version").click()
    page.get_by_text("qwen3-8b v1 is made.").wait_for()
    page.get_by_role("link", name="Admit", exact=True).click()
    dialog.get_by_role("button", name="Admit version").click()
    dialog.get_by_text("2 things are missing or wrong").wait_for()
    dialog.get_by_text("There is no manifest").wait_for()
    dialog.get_by_text("There is no model card").wait_for()
    shoot(page, "pool-not-admitted")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Edit the card").click()
    dialog.get_by_label("Model card").fill(json.dumps(CARD))
    dialog.get_by_role("button", name="Keep").click()
    page.get_by_text("The card is kept, and complete.").wait_for()
    page.get_by_role("link", name="Give a manifest").click()
    dialog.get_by_label("Manifest").fill(json.dumps(stated(make_manifest(TINY))))
    dialog.get_by_role("button", name="Keep").click()
    page.get_by_text("The manifest is kept").wait_for()
    page.get_by_role("link", name="Admit", exact=True).click()
    dialog.get_by_role("button", name="Admit version").click()
    page.get_by_text("qwen3-8b v1 is admitted.").wait_for()
    page.get_by_role("link", name="Serve", exact=True).click()
    dialog.get_by_text("No instance of it is ready").wait_for()
    dialog.get_by_role("button", name="Serve version").click()
    page.get_by_text("qwen3-8b v1 takes requests within a second.").wait_for()
    assert ModelVersion.objects.get().state == "serving"
    shoot(page, "pool-version-serving")


def test_a_tenant_is_granted_a_model_in_two_clicks_and_a_name_is_added(open_page: OpenPage) -> None:
    made = pool()
    services.create_model("other", actor=SYSTEM)
    tenant("acme")
    Grant.objects.all().delete()
    page = open_page()
    log_in(page, "olga", then=f"/console/models/{made.version.model_id}/")
    page.get_by_role("link", name="Grant access").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tenant").fill("acme")
    dialog.get_by_role("button", name="Grant", exact=True).click()
    page.get_by_text("Acme may call qwen3-8b within a second.").wait_for()
    assert Grant.objects.get().model_pattern == "qwen3-8b"
    page.get_by_role("link", name="Add a name").click()
    dialog.get_by_label("Another name").fill("other")
    dialog.get_by_role("button", name="Add name").click()
    dialog.get_by_text("There is a model other already.").wait_for()
    dialog.get_by_label("Another name").fill("qwen")
    dialog.get_by_role("button", name="Add name").click()
    page.get_by_text("qwen is another name of qwen3-8b within a second.").wait_for()


def test_an_answer_to_an_error_is_changed_and_dropped_and_devices_are_reserved(open_page: OpenPage) -> None:
    tenant("acme")
    page = open_page()
    log_in(page, "olga", then="/console/healing/?q=79")
    page.get_by_role("link", name="Change the answer to 79").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Answer").select_option("isolate")
    dialog.get_by_role("button", name="Set the answer").click()
    page.get_by_text("The answer to 79 is set").wait_for()
    page.get_by_role("link", name="Drop the own answer to 79").click()
    dialog.get_by_text("From the next error on this counts again: Drain and reboot the node").wait_for()
    dialog.get_by_role("button", name="Drop answer").click()
    page.get_by_text("The own answer to 79 is dropped.").wait_for()
    page.goto("/console/reservations/")
    page.get_by_role("link", name="Reserve").first.click()
    dialog.get_by_label("Tenant", exact=True).fill("acme")
    dialog.get_by_role("button", name="Reserve").click()
    dialog.get_by_text("Say how many devices are kept").wait_for()
    dialog.get_by_label("Devices", exact=True).fill("2")
    dialog.get_by_role("button", name="Reserve").click()
    page.get_by_text("The reservation is made.").wait_for()
    page.get_by_role("link", name="End what is reserved for Acme").click()
    dialog.get_by_role("button", name="End reservation").click()
    page.get_by_text("The reservation is ended.").wait_for()
    assert not EngineSwitch.objects.exists()

"""Nodes on the console: what they have and can do, what happened there, and what an operator does about it."""

from http import HTTPStatus

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from gpupool.models import Device, DeviceEvent, HealingAction, Node
from gpupool.reads.fuse_board import read_fuse_board
from tests.dashboard.people import PASSWORD, Pool, person, pool

pytestmark = pytest.mark.django_db


@pytest.fixture
def found() -> Pool:
    made = pool()
    node = made.device.node
    node.capabilities = {
        "cgroup": {"available": True, "reason": "Instances get a control group each."},
        "bubblewrap": {"available": False, "reason": "bwrap is not installed."},
    }
    node.facts = {"os": "Linux"}
    node.save()
    return made


def logged_in(client: Client, role: str) -> Client:
    person("olga", platform_role=role)
    assert client.login(username="olga@example.com", password=PASSWORD)
    return client


@pytest.mark.shows("R20")
def test_a_node_shows_what_it_can_isolate_by_and_why_not(client: Client, found: Pool) -> None:
    page = logged_in(client, "read_only").get(f"/console/nodes/{found.device.node_id}/").content.decode()
    assert "Control groups" in page
    assert "bwrap is not installed." in page
    assert "Put into maintenance" not in page


def test_events_and_actions_of_a_node_stand_with_their_reasons(client: Client, found: Pool) -> None:
    event = DeviceEvent.objects.create(
        node=found.device.node, device=found.device, boot_id="b", sequence=1, source="kernel_log", kind="xid", code=79,
        text="GPU has fallen off the bus", at=timezone.now(),
    )  # fmt: skip
    HealingAction.objects.create(
        node=found.device.node, device=found.device, event=event, action="reboot", state="dry_run", reason="XID 79."
    )
    page = logged_in(client, "operator").get(f"/console/nodes/{found.device.node_id}/").content.decode()
    assert "XID 79" in page
    assert "GPU has fallen off the bus" in page
    assert "Reboot the node" in page
    assert "Dry run" in page


@pytest.mark.shows("R94")
def test_how_busy_the_multiprocessors_are_is_dcgms_word_or_not_there(client: Client, found: Pool) -> None:
    address = f"/console/nodes/{found.device.node_id}/"
    reader = logged_in(client, "read_only")
    assert "n/a" in reader.get(address).content.decode()
    Device.objects.filter(pk=found.device.pk).update(telemetry={"sm_active": 0.421})
    page = reader.get(address).content.decode()
    assert "42.1" in page
    assert "n/a" not in page


@pytest.mark.shows("R153")
def test_the_memory_guards_table_tells_each_process_its_claim_and_who_is_no_one_of_ours(
    client: Client, found: Pool
) -> None:
    gib = 2**30
    found.device.processes = [
        {"pid": 4711, "name": "python", "memory_bytes": 23 * gib, "instance_id": str(found.instance.pk)},
        {"pid": 4712, "name": "somebody", "memory_bytes": None},
    ]
    found.device.save()
    found.instance.device_peak_bytes, found.instance.guard_state = 25 * gib, "over"
    found.instance.save()
    ours, theirs = read_fuse_board(found.device.node_id)
    assert (ours.pid, ours.current_bytes, ours.peak_bytes, ours.claimed_bytes) == (4711, 23 * gib, 25 * gib, 24 * gib)
    assert ours.share == pytest.approx(23 / 24)
    assert (theirs.pid, theirs.current_bytes, theirs.claimed_bytes, theirs.share) == (4712, None, None, None)
    page = logged_in(client, "read_only").get(f"/console/nodes/{found.device.node_id}/").content.decode()
    assert "Over its claim" in page
    assert "not of the pool" in page
    assert "95.8" in page


def test_an_operator_puts_a_node_into_maintenance_with_a_reason_and_back(client: Client, found: Pool) -> None:
    node, address = found.device.node, f"/console/nodes/{found.device.node_id}/maintenance/"
    operator = logged_in(client, "operator")
    assert operator.post(address, {"reason": " "}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    operator.post(address, {"reason": "New fans."})
    node.refresh_from_db()
    assert (node.maintenance, node.maintenance_reason) == (True, "New fans.")
    assert "New fans." in operator.get(f"/console/nodes/{node.pk}/").content.decode()
    operator.post(f"/console/nodes/{node.pk}/back/")
    node.refresh_from_db()
    assert not node.maintenance


def test_a_device_is_taken_out_and_given_back(client: Client, found: Pool) -> None:
    operator = logged_in(client, "operator")
    assert operator.get(f"/console/devices/{found.device.pk}/isolate/").status_code == HTTPStatus.OK
    operator.post(f"/console/devices/{found.device.pk}/isolate/", {"reason": "It coughs."})
    assert Device.objects.get().isolated_reason == "It coughs."
    page = operator.get(f"/console/nodes/{found.device.node_id}/").content.decode()
    assert "Taken out" in page
    operator.post(f"/console/devices/{found.device.pk}/give-back/")
    assert Device.objects.get().isolated_at is None


def test_who_only_reads_changes_nothing(client: Client, found: Pool) -> None:
    reader, node = logged_in(client, "read_only"), found.device.node_id
    for address in (
        f"/console/nodes/{node}/maintenance/",
        f"/console/nodes/{node}/back/",
        f"/console/nodes/{node}/cordon/on/",
        f"/console/devices/{found.device.pk}/isolate/",
        f"/console/devices/{found.device.pk}/give-back/",
    ):
        assert reader.post(address, {"reason": "Mine."}).status_code == HTTPStatus.FORBIDDEN, address
    assert not Node.objects.get().cordoned


def test_the_list_asks_the_same_number_of_questions_for_any_number_of_nodes(
    client: Client, found: Pool, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    reader = logged_in(client, "read_only")
    reader.get("/console/nodes/")
    for number in range(20):
        node = Node.objects.create(name=f"more-{number}", token_digest=f"{number:064}", token_last_four="0000")
        Device.objects.create(node=node, stable_id=f"GPU-{number}", kind="gpu", vendor="nvidia", name="H100")
    with CaptureQueriesContext(connection) as few:
        reader.get("/console/nodes/?state=expected")
    Node.objects.filter(name__startswith="more-1").delete()
    with django_assert_num_queries(len(few)):
        reader.get("/console/nodes/?state=expected")


def test_a_node_that_is_not_there_is_not_found(client: Client, found: Pool) -> None:
    reader = logged_in(client, "read_only")
    assert reader.get(f"/console/nodes/{found.device.pk}/").status_code == HTTPStatus.NOT_FOUND
    assert reader.post(f"/console/nodes/{found.device.node_id}/cordon/maybe/").status_code == HTTPStatus.NOT_FOUND


def test_dialogs_of_a_node_send_the_page_on_instead_of_showing_it_in_themselves(client: Client, found: Pool) -> None:
    operator, node = logged_in(client, "operator"), f"/console/nodes/{found.device.node_id}/"
    for dialog in (f"{node}maintenance/", f"/console/devices/{found.device.pk}/isolate/"):
        assert f'hx-post="{dialog}"' in operator.get(dialog, headers={"HX-Request": "true"}).content.decode()
        done = operator.post(dialog, {"reason": "New fans."}, headers={"HX-Request": "true"})
        assert (done.status_code, done.headers.get("HX-Redirect")) == (HTTPStatus.OK, node)

"""The control API of healing: events and actions page by page, rules with whose word they are, devices out and back."""

from typing import Any

import pytest
from django.db import transaction
from rest_framework.test import APIClient

from core.clock import ManualClock
from gpupool import services
from gpupool.controller.healing import heal_once
from gpupool.models import Device, Node
from gpupool.reads.healing import device_actions
from gpupool.services.healing import record_events
from gpupool.stream.messages import ActionFact, EventFact, Observed
from tenants.models import AuditEvent, PlatformRole
from tests.factories import make_user
from tests.gpupool.pool import a_device, an_online_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user(platform_role=PlatformRole.OPERATOR))
    return client


def errors(*codes: int) -> None:
    node = an_online_node(a_device("gpu-0"))
    events = [
        EventFact(sequence=number, source="kernel_log", kind="xid", at=1e9, stable_id="gpu-0", code=code, text="said")
        for number, code in enumerate(codes, start=1)
    ]
    with transaction.atomic():
        record_events(Node.objects.get(pk=node.pk), events)


def get(api: APIClient, address: str, **query: Any) -> Any:
    answer = api.get(address, query)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_events_are_told_newest_first_filtered_and_page_by_page_with_what_was_decided(api: APIClient) -> None:
    errors(43, 48, 43)
    heal_once(None, clock=ManualClock())
    page = get(api, "/api/healing/events/", code=43, limit=1)
    (newest,) = page["results"]
    assert (newest["sequence"], newest["device"], newest["decided"]) == (3, "gpu-0", True)
    assert "XID 43" in newest["verdict"]
    (older,) = api.get(page["next"]).json()["results"]
    assert older["sequence"] == 1
    assert get(api, "/api/healing/events/", node="nobody")["results"] == []
    assert api.get("/api/healing/events/", {"cod": 43}).status_code == 400


def test_actions_are_told_with_reasons(api: APIClient) -> None:
    errors(48)
    heal_once(None, clock=ManualClock())
    (dry,) = get(api, "/api/healing/actions/", state="dry_run")["results"]
    assert (dry["action"], dry["device"]) == ("reset", "gpu-0")
    assert "XID 48" in dry["reason"]
    assert [row["action"] for row in get(api, "/api/healing/actions/", action="isolate")["results"]] == ["isolate"]


@pytest.mark.shows("R64")
def test_a_rule_is_answered_otherwise_and_the_catalogue_counts_again_when_it_is_dropped(api: APIClient) -> None:
    listed = {rule["code"]: rule for rule in get(api, "/api/healing/rules/")["results"]}
    assert (listed[69]["answer"], listed[69]["provenance"]) == ("restart_app", "NVIDIA XID catalogue")
    assert (listed[8]["answer"], listed[8]["provenance"]) == ("reset_gpu", "design paper")
    address = "/api/healing/rules/69/"
    change = {"answer": "reset_gpu", "provenance": "runbook 12"}
    assert api.put(address, change, format="json").status_code == 428
    seen = api.get(address)
    changed = api.put(address, change, format="json", headers={"If-Match": seen["ETag"]})
    assert changed.status_code == 200, changed.content
    assert (changed.json()["answer"], changed.json()["provenance"]) == ("reset_gpu", "runbook 12")
    assert "reset" in changed.json()["done_as"]
    assert api.delete(address, headers={"If-Match": seen["ETag"]}).status_code == 412
    assert api.delete(address, headers={"If-Match": changed["ETag"]}).status_code == 204
    assert api.get(address).json()["answer"] == "restart_app"
    assert api.get("/api/healing/rules/7777/").status_code == 404
    new = api.put("/api/healing/rules/7777/", {"answer": "ignore"}, format="json", headers={"If-Match": "*"})
    assert new.json()["provenance"] == "operator"
    wrong = api.put("/api/healing/rules/7777/", {"answer": "merge_48"}, format="json", headers={"If-Match": "*"})
    assert wrong.status_code == 400


@pytest.mark.shows("P15")
def test_a_device_is_taken_out_and_given_back(api: APIClient) -> None:
    errors()
    address = f"/api/devices/{Device.objects.get().pk}/outage/"
    assert api.get(address).json()["why_still"] is None
    out = api.put(address, {"reason": "A fan is loud."}, format="json").json()
    assert (out["isolated_by"], out["isolated_reason"]) == ("person", "A fan is loud.")
    assert "person" in out["why_still"]
    back = api.delete(address).json()
    assert (back["isolated_at"], back["isolated_by"]) == (None, "")
    assert api.put(address, {}, format="json").status_code == 400
    reader = APIClient()
    reader.force_authenticate(make_user(platform_role=PlatformRole.READ_ONLY))
    assert reader.get(address).status_code == 200
    assert reader.put(address, {"reason": "x"}, format="json").status_code == 403


@pytest.mark.shows("R92")
def test_a_power_limit_is_asked_of_the_node_and_is_a_dry_run_by_default(api: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"), a_device("cpu-0", kind="cpu"))
    device = Device.objects.get(stable_id="gpu-0")
    address = f"/api/devices/{device.pk}/power-limit/"
    first, second = (
        api.put(address, {"watts": watts, "reason": "The circuit."}, format="json") for watts in (400, 300)
    )
    assert (first.status_code, second.json()["action"], second.json()["state"]) == (202, "limit_power", "pending")
    assert [row["state"] for row in get(api, "/api/healing/actions/")["results"]] == ["pending", "superseded"]
    (row,) = device_actions(node.pk)
    assert (row.action, row.stable_id, row.watts, row.dry_run) == ("limit_power", "gpu-0", 300, True)
    heal_once(None, clock=ManualClock())  # a wish is no attempt at an error
    would = ActionFact(action_id=row.action_id, state="dry_run", outcome="It would run: nvidia-smi")
    report = Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], actions=[would])
    services.apply_observed(node.pk, node.session, report)
    (ended,) = get(api, "/api/healing/actions/", action="limit_power", state="dry_run")["results"]
    assert (ended["outcome"], device_actions(node.pk)) == ("It would run: nvidia-smi", [])
    assert AuditEvent.objects.filter(action="device.power_limit_asked").count() == 2
    host = Device.objects.get(stable_id="cpu-0")
    wrong = api.put(f"/api/devices/{host.pk}/power-limit/", {"watts": 300, "reason": "x"}, format="json")
    assert wrong.status_code == 400
    assert api.put(address, {"watts": 0, "reason": "x"}, format="json").status_code == 400

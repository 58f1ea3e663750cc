"""The control API of nodes: tokens told once, changes that nobody overwrites unseen, maintenance with its reason."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from gpupool import services
from gpupool.models import Node
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.factories import make_user
from tests.gpupool.pool import a_device, an_online_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(db: None) -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user(platform_role="operator"))
    return client


def change(client: APIClient, node: Any, what: str, body: dict[str, Any]) -> Any:
    """PUT with the ETag of the node as it is now."""
    etag = client.get(f"/api/nodes/{node.pk}/")["ETag"]
    return client.put(f"/api/nodes/{node.pk}/{what}/", body, format="json", headers={"If-Match": etag})


def test_a_node_goes_into_maintenance_with_a_reason_and_back(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"))
    refused = change(operator, node, "maintenance", {"maintenance": True})
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["reason"])
    answer = change(operator, node, "maintenance", {"maintenance": True, "reason": "A fan is being replaced."})
    assert answer.status_code == 200
    assert (answer.json()["maintenance"], answer.json()["maintenance_reason"]) == (True, "A fan is being replaced.")
    audited = AuditEvent.objects.get(action="node.maintenance_changed")
    assert audited.after == {"maintenance": True, "reason": "A fan is being replaced."}
    back = change(operator, node, "maintenance", {"maintenance": False}).json()
    assert (back["maintenance"], back["maintenance_reason"], back["cordoned"]) == (False, "", False)


def test_a_change_over_somebody_elses_is_refused(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"))
    address = f"/api/nodes/{node.pk}/cordon/"
    assert operator.put(address, {"cordoned": True}, format="json").status_code == 428
    read = operator.get(f"/api/nodes/{node.pk}/")["ETag"]
    services.set_node_maintenance(node.pk, True, reason="Moved.", actor=SYSTEM)
    late = operator.put(address, {"cordoned": True}, format="json", headers={"If-Match": read})
    assert late.status_code == 412
    assert change(operator, node, "cordon", {"cordoned": True}).json()["cordoned"] is True


def test_what_an_agent_reports_is_no_change_of_somebody_elses(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"))
    read = operator.get(f"/api/nodes/{node.pk}/")["ETag"]
    Node.objects.filter(pk=node.pk).update(facts={"kernel": "another"}, state="unreachable")
    answer = operator.put(
        f"/api/nodes/{node.pk}/cordon/", {"cordoned": True}, format="json", headers={"If-Match": read}
    )
    assert answer.status_code == 200


def test_a_token_is_told_once_even_to_who_asks_with_the_same_key(operator: APIClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = operator.post("/api/nodes/", {"name": "gpu-7"}, format="json", headers=headers)
    again = operator.post("/api/nodes/", {"name": "gpu-7"}, format="json", headers=headers)
    assert (first.status_code, again.status_code, again["Idempotent-Replayed"]) == (201, 201, "true")
    assert first.json()["token"].startswith("gn-")
    assert "token" not in again.json()
    assert Node.objects.count() == 1


def test_nodes_are_filtered_and_their_devices_told(operator: APIClient) -> None:
    node = an_online_node(a_device("gpu-0"), a_device("gpu-1", memory_bytes=None))
    services.create_node("spare", actor=SYSTEM)
    assert [one["name"] for one in operator.get("/api/nodes/?state=online").json()["results"]] == ["node-1"]
    assert operator.get("/api/nodes/?state=lost").status_code == 400
    devices = operator.get(f"/api/nodes/{node.pk}/devices/").json()["results"]
    assert {one["stable_id"]: one["memory_bytes"] for one in devices} == {"gpu-0": 16 << 30, "gpu-1": None}
    assert operator.get("/api/nodes/00000000-0000-7000-8000-000000000000/devices/").status_code == 404

"""Pages say that nodes are made up, in both languages; nobody takes a simulated figure for a real one."""

import pytest
from django.test import Client

from gpupool import services
from gpupool.models import Instance, Node
from tenants.actor import SYSTEM
from tests.dashboard.people import person
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(person("olga", platform_role="operator"))
    return client


def make_up(name: str) -> Node:
    node = an_online_node(a_device(f"GPU-{name}"), name=name)
    Node.objects.filter(pk=node.pk).update(simulated=True)
    return Node.objects.get(pk=node.pk)


@pytest.mark.parametrize("path", ["/console/overview/", "/console/nodes/", "/console/instances/"])
def test_every_page_of_the_console_says_that_the_fleet_is_simulated(operator: Client, path: str) -> None:
    assert 'id="simulated"' not in operator.get(path).content.decode()
    make_up("sim-1")
    page = operator.get(path).content.decode()
    assert "This fleet is simulated: no figure on this page comes from a real device." in page
    an_online_node(a_device("GPU-real"), name="real")
    page = operator.get(path).content.decode()
    assert "Some nodes are simulated: their devices, and what runs on them, are made up." in page
    chinese = operator.get(path, headers={"accept-language": "zh-hans"}).content.decode()
    assert "部分节点为模拟节点" in chinese


def test_an_instance_of_a_simulated_node_is_marked_in_the_api(operator: Client) -> None:
    node = make_up("sim-1")
    version = a_version("llama", memory_bytes=GIB, artefact="file:///simulated/llama")
    instance = place_one(version, node)
    (row,) = operator.get("/api/instances/").json()["results"]
    assert (row["id"], row["simulated"]) == (str(instance.pk), True)
    attached = services.attach_engine("http://127.0.0.1:9", engine="vllm", model_name="m", actor=SYSTEM).instance
    rows = {each["id"]: each["simulated"] for each in operator.get("/api/instances/").json()["results"]}
    assert rows[str(Instance.objects.get(pk=attached.pk).pk)] is False

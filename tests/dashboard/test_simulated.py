"""Pages say that nodes are made up, in both languages; nobody takes a simulated figure for a real one."""

import re
from http import HTTPStatus

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.frames import build_console_frame
from dashboard.selectors import list_portal_models
from gpupool import services
from gpupool.models import Device, DeviceEvent, HealingAction, Instance, Node
from gpupool.stream.messages import Observed
from tenants.actor import SYSTEM
from tenants.models import TenantRole, User
from tests.dashboard.people import tenant
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db


def make_up(name: str) -> Node:
    node = an_online_node(a_device(f"GPU-{name}"), name=name)
    Node.objects.filter(pk=node.pk).update(simulated=True)
    Device.objects.filter(node=node.pk).update(simulated=True)
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


def test_beside_an_attached_engine_not_every_figure_is_made_up(operator: Client) -> None:
    make_up("sim-1")
    services.attach_engine("http://127.0.0.1:9", engine="vllm", model_name="m", actor=SYSTEM)
    page = operator.get("/console/overview/").content.decode()
    assert "Some nodes are simulated: their devices, and what runs on them, are made up." in page


def test_the_overview_says_how_much_of_its_sums_is_simulated(operator: Client) -> None:
    an_online_node(a_device("GPU-real"), name="real")
    note = r'<p class="dim"\s+data-show="devices_simulated"\s*>'
    page = operator.get("/console/overview/").content.decode()
    assert (re.search(note, page), build_console_frame(now=timezone.now()).figures.devices_simulated) == (
        None,
        0,
    )
    make_up("sim-1")
    page = operator.get("/console/overview/").content.decode()
    assert re.search(note, page)
    assert "These figures count simulated devices, and what runs on them, like all others." in page
    figures = build_console_frame(now=timezone.now()).figures
    assert (figures.devices, figures.devices_simulated) == (2, 1)


def test_an_operator_gives_a_made_up_fleet_a_model_as_the_guide_says(operator: Client) -> None:
    tenant("demo")
    steps = (
        ("/api/models/", {"name": "llama"}),
        (
            "/api/versions/",
            {
                "model": "llama", "name": "v1", "engine": "vllm", "artefact_uri": "file:///simulated/llama",
                "memory_bytes": 20_000_000_000, "device_kind": "gpu", "replicas": 4,
            },
        ),
        ("/api/tenants/demo/grants/", {"model_pattern": "llama"}),
    )  # fmt: skip
    for path, asked in steps:
        answer = operator.post(path, asked, content_type="application/json")
        assert answer.status_code == HTTPStatus.CREATED, answer.content


def test_an_instance_of_a_simulated_node_is_marked_in_the_api(operator: Client) -> None:
    node = make_up("sim-1")
    version = a_version("llama", memory_bytes=GIB, artefact="file:///simulated/llama")
    instance = place_one(version, node)
    (row,) = operator.get("/api/instances/").json()["results"]
    assert (row["id"], row["simulated"]) == (str(instance.pk), True)
    attached = services.attach_engine("http://127.0.0.1:9", engine="vllm", model_name="m", actor=SYSTEM).instance
    rows = {each["id"]: each["simulated"] for each in operator.get("/api/instances/").json()["results"]}
    assert rows[str(Instance.objects.get(pk=attached.pk).pk)] is False


def test_beside_real_ones_each_row_of_what_is_made_up_says_so(operator: Client) -> None:
    made_up, real = make_up("sim-1"), an_online_node(a_device("GPU-real"), name="real")
    place_one(a_version("llama", memory_bytes=GIB, artefact="file:///simulated/llama"), made_up)
    place_one(a_version("qwen", memory_bytes=GIB), real)
    for path, rows in (("overview", 4), ("instances", 2)):
        page = operator.get(f"/console/{path}/").content.decode()
        told = re.findall(r'<tr data-row="[0-9a-f-]{36}">.*?</tr>', page, re.DOTALL)
        assert len(told) == rows
        shown = [re.search(r'data-show="simulated"\s*>', row) is not None for row in told]
        assert shown == ["sim-1" in row for row in told]
    assert "sim-1 · simulated" in operator.get(f"/console/nodes/{made_up.pk}/").content.decode()
    assert "real · simulated" not in operator.get(f"/console/nodes/{real.pk}/").content.decode()


def test_a_tenant_is_told_which_model_is_made_up(client: Client) -> None:
    acme = tenant("acme", mia=TenantRole.DEVELOPER)
    services.create_version(
        services.create_model("llama", actor=SYSTEM), name="v1", engine="vllm", artefact_uri="file:///simulated/llama",
        memory_bytes=GIB, actor=SYSTEM,
    )  # fmt: skip
    a_version("qwen", memory_bytes=GIB)
    client.force_login(User.objects.get(email="mia@example.com"))
    told = {model.name: model.simulated for model in list_portal_models(acme)}
    assert told == {"llama": True, "qwen": False}
    assert client.get("/t/acme/").content.decode().count("Simulated") == 1


def test_versions_events_and_actions_say_it_in_the_api(operator: Client) -> None:
    node = make_up("sim-1")
    a_version("llama", memory_bytes=GIB, artefact="file:///simulated/llama")
    event = DeviceEvent.objects.create(
        node=node, boot_id="b", sequence=1, source="nvml", kind="xid", code=13, at=timezone.now()
    )
    HealingAction.objects.create(node=node, event=event, action="restart_app", state="done", reason="r")
    for path in ("versions", "healing/events", "healing/actions"):
        (row,) = operator.get(f"/api/{path}/").json()["results"]
        assert row["simulated"] is True, path


def test_pages_of_the_pool_ask_as_little_of_a_large_fleet_as_of_a_small_one(operator: Client) -> None:
    node = an_online_node(a_device("GPU-1"), name="one")
    version = a_version("llama", memory_bytes=GIB)
    place_one(version, node)
    paths = (
        "/console/overview/",
        "/console/nodes/",
        f"/console/nodes/{node.pk}/",
        f"/console/fit/?version={version.pk}",
    )

    def asked() -> list[int]:
        counts = []
        for path in paths:
            operator.get(path)
            with CaptureQueriesContext(connection) as queries:
                assert operator.get(path).status_code == 200
            counts.append(len(queries))
        return counts

    small = asked()
    for number in range(6):
        another = an_online_node(*(a_device(f"GPU-{number}-{at}") for at in range(4)), name=f"more-{number}")
        place_one(version, another)
    facts = [a_device("GPU-1"), *(a_device(f"GPU-0{at}") for at in range(4))]
    services.apply_observed(node.pk, node.session, Observed(sequence=1, devices=facts, instances=[]))
    assert asked() == small

"""A simulated fleet beside the real web process, controller and relay: what is asked for comes up and answers."""

from collections.abc import Iterator

import httpx2 as httpx
import pytest
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from bench.house import House, wait_until
from bench.rows import make_key, make_tenant
from gpupool import services
from gpupool.models import Device, Instance, InstanceState, MemoryFrame, Node, NodeState
from gpupool.policies.memory_summary import table_of
from gpupool.reads.memory import read_tree
from tenants.actor import SYSTEM
from tests.house import house_environ, own_database
from tests.ports import worker_port

GIB = 1 << 30


@pytest.fixture(scope="module")
def house(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("fleet")
    with own_database(django_db_blocker) as database_url:
        house = House(folder, house_environ(database_url))
        try:
            yield house
        finally:
            house.stop_all()


def memory_parts() -> dict[str, int]:
    """MiB of the instance's parts."""
    tree = read_tree(now=timezone.now())
    assert tree.simulated == "all"
    return {row.segment: row.mib for row in table_of(tree) if row.model == "llama"}


@pytest.mark.slow
def test_a_version_on_a_simulated_fleet_becomes_ready_and_answers_and_all_of_it_is_marked(house: House) -> None:
    key = make_key(make_tenant("acme", models=("llama",)), "test")
    model = services.create_model("llama", actor=SYSTEM)
    services.create_version(
        model,
        name="v1",
        engine="vllm",
        artefact_uri="file:///simulated/llama",
        memory_bytes=20 * GIB,
        device_kind="gpu",
        replicas=1,
        actor=SYSTEM,
    )
    house.start("web")
    house.start("controller")
    house.start("drain")
    house.start(
        "simulate-fleet", "--nodes", "2", "--gpus", "2", "--kind", "h100", "--speed", "20", "--traffic", "0",
        "--port-first", str(worker_port(0)), "--web-url", house.web_url,
    )  # fmt: skip
    house.start("relay")
    ready = Instance.objects.filter(state=InstanceState.READY)
    wait_until(ready.exists, "an instance is ready", seconds=120)
    assert {(node.name, node.state, node.simulated) for node in Node.objects.all()} == {
        ("sim-h100-01", NodeState.ONLINE, True),
        ("sim-h100-02", NodeState.ONLINE, True),
    }
    gpus = Device.objects.filter(kind="gpu")
    assert [(gpu.simulated, gpu.tags) for gpu in gpus] == [(True, ["H100-80GB", "H100"])] * 4
    assert Device.objects.filter(kind="cpu", simulated=True).count() == 2
    parts = ["weights", "kv_used", "kv_free", "activations", "unused"]
    wait_until(lambda: list(memory_parts()) == parts, "the engine tells its parts, and the GPU its processes")
    # A device's last reading may be of when it still loaded: parts are fitted into what it was seen to use then.
    wait_until(lambda: memory_parts()["weights"] == 12 * 1024, "the GPU tells that the weights are loaded")
    assert sum(memory_parts().values()) == 20 * 1024
    wait_until(MemoryFrame.objects.exists, "the controller records the memory")

    with httpx.Client(
        base_url=house.relay_url, headers={"authorization": f"Bearer {key.secret}"}, timeout=30
    ) as client:
        ask = {"model": "llama", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 12}
        wait_until(lambda: client.post("/v1/chat/completions", json=ask).status_code == 200, "the relay knows it")
        answer = client.post("/v1/chat/completions", json=ask).json()
        assert answer["choices"][0]["message"]["content"].startswith("This answer was made up by a simulated engine")
        streamed = client.post("/v1/chat/completions", json=ask | {"stream": True}).text
        assert streamed.count("data: ") >= 12
        assert streamed.rstrip().endswith("data: [DONE]")

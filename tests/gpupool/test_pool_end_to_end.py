"""Controller, web and agent as real processes, a real engine: what is asked for comes up, and comes back."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from gpupool import services
from gpupool.models import Instance, InstanceState, Lease, ModelVersion, Node, NodeState
from gpupool.policies.memory_summary import table_of
from gpupool.reads.memory import read_tree
from gpupool.selectors import list_ready_endpoints
from tenants.actor import SYSTEM
from tests.gpupool.processes import Pool, eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
NODE = "node-1"


@pytest.fixture
def pool(tmp_path: Path, transactional_db: None) -> Iterator[Pool]:
    running = Pool(tmp_path, os.environ["DATABASE_URL"])
    try:
        yield running
    finally:
        running.close()


def _tiny_version(tiny_model: Path) -> ModelVersion:
    model = services.create_model("tiny", actor=SYSTEM)
    return services.create_version(
        model,
        name="v1",
        engine="llamacpp",
        artefact_uri=f"file://{tiny_model}",
        memory_bytes=256 * 1024 * 1024,
        device_kind="cpu",
        replicas=1,
        actor=SYSTEM,
    )


def _ready(pool: Pool, *, other_than: int | None = None) -> Instance:
    """The one instance, once it is ready with a process other than `other_than`."""

    def look() -> Instance | None:
        found = Instance.objects.filter(state=InstanceState.READY).exclude(pid=None)
        if other_than is not None:
            found = found.exclude(pid=other_than)
        return found.first()

    instance = eventually(look, seconds=60, say=pool.logs)
    assert instance is not None
    return instance


def _answers(instance: Instance) -> bool:
    with urllib.request.urlopen(f"http://{instance.host}:{instance.port}/v1/models", timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.mark.shows("P7", "P12")
def test_the_pool_heals_what_is_killed(pool: Pool, tiny_model: Path) -> None:
    token = services.create_node(NODE, actor=SYSTEM).token
    _tiny_version(tiny_model)
    pool.start_web()
    controller = pool.start_controller()
    agent = pool.start_agent(NODE, token)

    first = _ready(pool)
    assert _answers(first)
    assert Lease.objects.get(released_at=None).lease_id == first.lease_id
    assert first.pid is not None
    own = [(row.segment, row.mib) for row in table_of(read_tree(now=timezone.now())) if row.model == "tiny"]
    assert [name for name, _ in own] == ["weights", "unknown", "activations", "unused"]  # it tells no use of its cache
    assert sum(mib for _, mib in own) == 256
    assert first.weights_bytes  # as the engine logged
    assert first.kv_capacity_bytes

    # An engine killed by hand comes back, on the same claim.
    os.kill(first.pid, signal.SIGKILL)
    second = _ready(pool, other_than=first.pid)
    assert second.pk == first.pk
    assert second.lease_id == first.lease_id
    assert _answers(second)

    # An agent killed and restarted adopts its running engine.
    pool.kill(agent)
    assert _answers(second)
    agent = pool.start_agent(NODE, token)
    session = second.node.session_id if second.node else None
    eventually(lambda: Instance.objects.get(pk=second.pk).node.session_id != session, say=pool.logs)  # type: ignore[union-attr]
    third = _ready(pool)
    assert (third.pk, third.pid) == (second.pk, second.pid)

    # A controller killed hard is replaced by the one that waits.
    pool.start_controller()
    pool.kill(controller)
    services.set_replicas(third.version_id, 0, actor=SYSTEM)
    eventually(lambda: Instance.objects.get().state == InstanceState.STOPPED, seconds=60, say=pool.logs)
    assert not Lease.objects.filter(released_at=None).exists()


@pytest.mark.shows("P11")
def test_a_paused_leader_that_wakes_up_writes_nothing_any_more(pool: Pool, tiny_model: Path) -> None:
    token = services.create_node(NODE, actor=SYSTEM).token
    version = _tiny_version(tiny_model)
    pool.start_web()
    paused = pool.start_controller()
    pool.start_agent(NODE, token)
    _ready(pool)
    paused.send_signal(signal.SIGSTOP)
    pool.start_controller()
    services.set_replicas(version.pk, 2, actor=SYSTEM)
    eventually(lambda: Instance.objects.filter(state=InstanceState.READY).count() == 2, seconds=60, say=pool.logs)
    paused.send_signal(signal.SIGCONT)
    eventually(lambda: "leadership_lost" in pool.logs(), say=pool.logs)
    services.set_replicas(version.pk, 3, actor=SYSTEM)
    eventually(lambda: Instance.objects.filter(state=InstanceState.READY).count() == 3, seconds=60, say=pool.logs)
    assert Instance.objects.count() == 3  # nobody asked for one more than was wanted


def test_a_silent_node_keeps_serving_and_what_died_with_it_is_replaced_elsewhere(pool: Pool, tiny_model: Path) -> None:
    tokens = {name: services.create_node(name, actor=SYSTEM).token for name in ("node-1", "node-2", "node-3")}
    version = _tiny_version(tiny_model)
    pool.start_web()
    pool.start_controller()
    agents = {name: pool.start_agent(name, token) for name, token in tokens.items()}
    eventually(lambda: Node.objects.filter(state=NodeState.ONLINE).count() == 3, seconds=60, say=pool.logs)
    first = _ready(pool)
    assert first.node is not None
    assert first.pid is not None
    home = first.node

    # The agent is frozen: the node counts as unreachable, its engine answers and stays in routing.
    agents[home.name].send_signal(signal.SIGSTOP)
    eventually(lambda: Node.objects.get(pk=home.pk).state == NodeState.UNREACHABLE, say=pool.logs)
    assert [endpoint.instance_id for endpoint in list_ready_endpoints()] == [first.pk]

    # The engine dies as well: it leaves routing, keeps its claim, and a new one starts on another node.
    os.kill(first.pid, signal.SIGKILL)
    replacement = eventually(
        lambda: Instance.objects.filter(state=InstanceState.READY).exclude(pk=first.pk).first(),
        seconds=60,
        say=pool.logs,
    )
    assert replacement is not None
    assert replacement.node_id != home.pk
    first.refresh_from_db()
    assert first.state == InstanceState.UNKNOWN
    assert Lease.objects.filter(released_at=None, device__node=home).count() == 1

    # The node returns: one of the two is surplus; in the end there is one instance and one claim.
    agents[home.name].send_signal(signal.SIGCONT)
    eventually(lambda: Node.objects.get(pk=home.pk).state == NodeState.ONLINE, say=pool.logs)
    eventually(
        lambda: (
            Instance.objects.exclude(state=InstanceState.STOPPED).count() == 1
            and Lease.objects.filter(released_at=None).count() == 1
        ),
        seconds=60,
        say=pool.logs,
    )
    assert Instance.objects.get(state=InstanceState.READY).version_id == version.pk

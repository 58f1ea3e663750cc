"""The devices' memory out of the pool's rows: whose it is, what engines tell, in a constant number of queries."""

import gc
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.db import OperationalError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from gpupool import services
from gpupool.controller.memory import MemoryRecorder
from gpupool.models import Device, DeviceMinute, Instance, Lease, MemoryFrame, ModelVersion, Node
from gpupool.policies.memory_summary import summarise, table_of
from gpupool.policies.memory_tree import MemoryTree
from gpupool.policies.memory_wire import frame_of
from gpupool.policies.silence import SILENT_AFTER
from gpupool.reads import memory as reads
from gpupool.reads.memory import read_tenant_quotas, read_tenant_tree, read_tree
from gpupool.reads.memory_history import read_frame, read_history
from gpupool.services.catalogue import create_model, create_version
from gpupool.services.memory_history import forget_tenant
from tenants.actor import SYSTEM
from tenants.models import Limit, Tenant
from tests.factories import make_tenant
from tests.gpupool.pool import GIB, OnlineNode, a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    reads._weights.clear()


def own_version(tenant: Tenant, name: str) -> ModelVersion:
    model = create_model(name, actor=SYSTEM, tenant_id=tenant.pk)
    return create_version(
        model, name="v1", engine="vllm", artefact_uri=f"file:///{name}", memory_bytes=4 * GIB, actor=SYSTEM
    )


def runs(instance: Instance, *, used: int = 3 * GIB, **more: Any) -> Instance:
    """As its agent and engine would tell it."""
    told = {
        "state": "ready", "pid": 4000 + instance.pk.int % 1000, "device_bytes": used, "weights_bytes": 2 * GIB,
        "kv_capacity_bytes": GIB // 2, "kv_used": 0.5,
    }  # fmt: skip
    Instance.objects.filter(pk=instance.pk).update(**(told | more))
    lease = Lease.objects.get(holder=f"instance:{instance.pk}")
    device = Device.objects.get(pk=lease.device_id)
    listed = {"pid": 1, "name": "engine", "memory_bytes": used, "instance_id": str(instance.pk)}
    device.processes = [*device.processes, listed]
    device.memory_used_bytes = (device.memory_used_bytes or 0) + used
    device.save()
    return instance


def two_tenants(node: OnlineNode) -> tuple[Tenant, Tenant]:
    """Both with an instance on the node's one device, and one that everybody uses."""
    acme, rival = make_tenant("acme"), make_tenant("rival")
    runs(place_one(own_version(acme, "acme-model"), node))
    runs(place_one(own_version(rival, "rival-secret"), node), kv_used=0.95)
    runs(place_one(a_version("common-model", memory_bytes=2 * GIB), node), used=GIB, weights_bytes=GIB // 2)
    return acme, rival


def shown(tree: MemoryTree) -> list[tuple[str, str, str, int]]:
    return [(row.tenant, row.model, row.segment, row.mib) for row in table_of(tree)]


def test_a_tree_of_the_pools_rows() -> None:
    two_tenants(an_online_node(a_device("gpu-0", memory_bytes=16 * GIB)))
    tree = read_tree(now=timezone.now())
    assert shown(tree) == [
        ("Acme", "acme-model", "weights", 2048), ("Acme", "acme-model", "kv_used", 256),
        ("Acme", "acme-model", "kv_free", 256), ("Acme", "acme-model", "activations", 512),
        ("Acme", "acme-model", "unused", 1024),
        ("Rival", "rival-secret", "weights", 2048), ("Rival", "rival-secret", "kv_used", 486),
        ("Rival", "rival-secret", "kv_free", 26), ("Rival", "rival-secret", "activations", 512),
        ("Rival", "rival-secret", "unused", 1024),
        ("shared", "common-model", "weights", 512), ("shared", "common-model", "kv_used", 256),
        ("shared", "common-model", "kv_free", 256), ("shared", "common-model", "activations", 0),
        ("shared", "common-model", "unused", 1024),
        ("", "", "other", 0), ("", "", "free", 6144),
    ]  # fmt: skip
    summary = summarise(tree)
    assert (summary.allocated_mib, summary.used_mib, summary.schedulable_mib) == (10240, 7168, 6144)
    assert [one.model for one in summary.tightest] == ["rival-secret", "acme-model", "common-model"]
    assert summary.pressed == 1


def test_queries_are_as_many_for_a_thousand_devices_as_for_one(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    now = timezone.now()
    node = an_online_node(*(a_device(f"gpu-{at}") for at in range(3)))
    acme, _ = two_tenants(node)
    read_tree(now=now)
    with django_assert_num_queries(5):
        read_tree(now=now)
    with django_assert_num_queries(7):
        read_tenant_tree(acme, now=now)
    Device.objects.bulk_create(
        Device(node_id=node.pk, stable_id=f"more-{at}", kind="gpu", vendor="nvidia", name="H100", memory_bytes=GIB)
        for at in range(1000)
    )
    with django_assert_num_queries(5):
        tree = read_tree(now=now)
    assert sum(kind == "gpu" for _, kind, *_ in tree.nodes) == 1003
    with django_assert_num_queries(7):
        read_tenant_tree(acme, now=now)


def test_cycles_are_looked_for_again_after_a_read_whatever_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def fail(*_: Any, **__: Any) -> None:
        seen.append(gc.isenabled())
        raise OperationalError("away")

    read_tree(now=timezone.now())
    assert gc.isenabled()
    monkeypatch.setattr(reads, "build_tree", fail)
    with pytest.raises(OperationalError):
        read_tree(now=timezone.now())
    assert (seen, gc.isenabled()) == ([False], True)


def test_one_nodes_tree() -> None:
    one = an_online_node(a_device("gpu-0"), name="one")
    an_online_node(a_device("gpu-1"), name="two")
    tree = read_tree(now=timezone.now(), node_id=one.pk)
    assert [label for _, kind, _, label, _ in tree.nodes if kind == "node"] == ["one"]
    assert tree.scope == f"node:{one.pk}"
    with pytest.raises(Node.DoesNotExist):
        read_tree(now=timezone.now(), node_id=UUID(int=5))


def test_hosts_are_shown_where_claimed_or_alone_and_parts_instead_of_wholes() -> None:
    an_online_node(a_device("cpu-0", kind="cpu"), name="a-host")
    node = an_online_node(
        a_device("cpu-1", kind="cpu"), a_device("gpu-whole"), a_device("gpu-part"), a_device("gpu-gone"), name="b-gpus"
    )
    Device.objects.filter(stable_id="gpu-whole").update(allocatable=False)
    Device.objects.filter(stable_id="gpu-part").update(partition_of="gpu-whole", index=1)
    Device.objects.filter(stable_id="gpu-gone").update(present=False)
    tree = read_tree(now=timezone.now())
    assert [label for _, kind, _, label, _ in tree.nodes if kind == "gpu"] == ["a-host/cpu", "b-gpus/1"]
    version = a_version("on-cpu", device_kind="cpu")
    assert version.device_kind == "cpu"
    instance = services.request_instance(version.pk, actor=SYSTEM)
    device = Device.objects.get(stable_id="cpu-1")
    services.claim_and_place(instance.pk, device.pk, actor=SYSTEM)
    runs(instance, used=0, memory_rss_bytes=GIB // 2, weights_bytes=GIB // 4, kv_capacity_bytes=None, kv_used=None)
    tree = read_tree(now=timezone.now(), node_id=node.pk)
    assert [label for _, kind, _, label, _ in tree.nodes if kind == "gpu"] == ["b-gpus/1", "b-gpus/cpu"]
    assert [row[2:] for row in shown(tree) if row[1] == "on-cpu"] == [
        ("weights", 256), ("unknown", 256), ("unused", 512),
    ]  # fmt: skip


def test_a_silent_node_says_nothing_of_its_use() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    later = timezone.now() + SILENT_AFTER + timedelta(seconds=1)
    tree = read_tree(now=later)
    assert {row.segment for row in table_of(tree)} == {"unknown"}
    assert summarise(tree).used_mib is None
    Node.objects.update(state="unreachable")
    assert summarise(read_tree(now=timezone.now())).schedulable_mib == 0


def test_what_an_agent_made_up_of_processes_takes_no_trees_away() -> None:
    """Rows may be older than what is refused of such reports now."""
    two_tenants(an_online_node(a_device("gpu-0")))
    device = Device.objects.get()
    owner = device.processes[0]["instance_id"]
    odd = [{"pid": 1, "instance_id": {}}, {"pid": 2, "instance_id": owner, "memory_bytes": -(1 << 62)}]
    before = read_tree(now=timezone.now())
    Device.objects.update(processes=[*device.processes, *odd])
    assert read_tree(now=timezone.now()) == before
    Instance.objects.update(kv_used=1e308)
    assert sum(read_tree(now=timezone.now()).values) == 16 * 1024


def test_nothing_new_is_placed_on_what_is_cordoned() -> None:
    node = an_online_node(a_device("gpu-0"))
    assert summarise(read_tree(now=timezone.now())).schedulable_mib == 16 * 1024
    Node.objects.filter(pk=node.pk).update(cordoned=True)
    assert summarise(read_tree(now=timezone.now())).schedulable_mib == 0


def test_weights_that_no_engine_tells_are_those_of_the_manifest() -> None:
    instance = runs(place_one(a_version("quiet"), an_online_node(a_device("gpu-0"))), used=GIB, weights_bytes=None)
    files = [{"path": "model.gguf", "bytes": 512 * MIB, "sha256": "0" * 64},
             {"path": "README.md", "bytes": 64 * MIB, "sha256": "0" * 64}]  # fmt: skip
    ModelVersion.objects.filter(instances=instance).update(manifest={"version": 1, "files": files})
    assert ("shared", "quiet", "weights", 512) in shown(read_tree(now=timezone.now()))


def test_a_tenants_tree_and_frames_and_history_have_nothing_of_others() -> None:
    node = an_online_node(a_device("gpu-0"))
    acme, rival = two_tenants(node)
    device, now = Device.objects.get(), timezone.now()
    MemoryRecorder(None).record(now)
    before = read_tenant_tree(acme, now=now)
    frame = read_frame(now, tenant=acme)
    history = read_history(device.pk, "1h", now=now, tenant=acme)
    assert frame is not None
    told = msgspec.json.encode([frame_of(before, epoch=1, seq=1, at=now), frame, history]).decode()
    assert "acme-model" in told
    for word in ("rival", "Rival", "common-model", str(rival.pk), "shared"):
        assert word not in told
    Instance.objects.exclude(version__model__name="acme-model").update(kv_used=0.1, device_bytes=GIB, state="failed")
    device.processes = [one for one in device.processes if one["memory_bytes"] == 3 * GIB][:1]
    device.memory_used_bytes = 5 * GIB
    device.save()
    assert read_tenant_tree(acme, now=now) == before
    assert [row[2:] for row in shown(before)][-2:] == [("reserved", 6144), ("free", 6144)]


def test_who_has_nothing_on_a_device_is_told_of_no_such_device() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    MemoryRecorder(None).record(timezone.now())
    nobody, device = make_tenant("nobody"), Device.objects.get()
    with pytest.raises(Device.DoesNotExist):
        read_history(device.pk, "1h", now=timezone.now(), tenant=nobody)
    assert read_tenant_tree(nobody, now=timezone.now()).values == ()


@pytest.mark.shows("R132")
def test_a_tenants_live_use_stands_against_its_quota() -> None:
    acme, rival = two_tenants(an_online_node(a_device("gpu-0")))
    Limit.objects.create(tenant=acme, metric="gpu_memory", amount=8 * GIB)
    Limit.objects.create(tenant=rival, metric="gpu_memory", amount=9 * GIB)
    Limit.objects.create(metric="gpu_memory", amount=99 * GIB)
    (quota,) = read_tenant_quotas(acme, now=timezone.now())
    assert (quota.amount, quota.held, quota.used_bytes) == (8 * GIB, 4 * GIB, 3 * GIB)


def test_a_limit_of_departments_too_does_not_tell_what_those_use() -> None:
    """Of a department the tenant's tree has claims alone: its use would be the rest of the sum."""
    acme, rival = two_tenants(an_online_node(a_device("gpu-0")))
    Limit.objects.create(tenant=acme, metric="gpu_memory", amount=8 * GIB, subtree=True)
    (quota,) = read_tenant_quotas(acme, now=timezone.now())
    assert quota.used_bytes == 3 * GIB
    Tenant.objects.filter(pk=rival.pk).update(parent=acme)
    (quota,) = read_tenant_quotas(acme, now=timezone.now())
    assert (quota.held, quota.used_bytes) == (8 * GIB, None)


def test_weights_that_could_not_be_looked_up_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = runs(place_one(a_version("quiet"), an_online_node(a_device("gpu-0"))), used=GIB, weights_bytes=None)
    files = [{"path": "model.gguf", "bytes": 512 * MIB, "sha256": "0" * 64}]
    ModelVersion.objects.filter(instances=instance).update(manifest={"version": 1, "files": files})

    def away(*_: Any) -> None:
        raise OperationalError("away")

    with monkeypatch.context() as broken:
        broken.setattr(reads, "_stated_weights", away)
        with pytest.raises(OperationalError):
            read_tree(now=timezone.now())
    assert ("shared", "quiet", "weights", 512) in shown(read_tree(now=timezone.now()))


def test_a_frame_of_long_before_is_not_one_of_then() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    began = timezone.now()
    MemoryRecorder(None).record(began)
    assert read_frame(began + timedelta(seconds=60)) is not None
    assert read_frame(began + timedelta(seconds=61)) is None  # no controller ran


def test_frames_are_read_back_as_they_were_recorded() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    began, recorder = timezone.now(), MemoryRecorder(None)
    Device.objects.update(observed_at=began + timedelta(days=2))  # it is heard of all the time
    trees: list[MemoryTree] = []
    for step in range(20):
        Instance.objects.update(kv_used=0.04 * step)
        trees.append(read_tree(now=began))
        recorder.record(began + timedelta(seconds=5 * step))
    assert MemoryFrame.objects.filter(whole=True).count() == 2
    for step in (0, 1, 11, 12, 19):
        found = read_frame(began + timedelta(seconds=5 * step + 3))
        assert found is not None
        assert found.at == began + timedelta(seconds=5 * step)
        assert found.tree.nodes == trees[step].nodes
        assert all(abs(a - b) * 200 <= b for a, b in zip(found.tree.values, trees[step].values, strict=True))
    assert read_frame(began - timedelta(seconds=1)) is None
    other = Instance.objects.all()[0]
    other.state = "draining"
    other.save()
    recorder.record(began + timedelta(seconds=100))
    assert MemoryFrame.objects.filter(whole=True).count() == 3  # another topology
    recorder.record(began + timedelta(minutes=20))
    assert MemoryFrame.objects.count() == 1  # the others are too old


def test_a_frame_that_was_not_written_spoils_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    began, recorder = timezone.now(), MemoryRecorder(None)
    Device.objects.update(observed_at=began + timedelta(days=2))

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("away")

    for step in range(5):
        Instance.objects.update(kv_used=0.1 * step)
        with monkeypatch.context() as broken:
            if step == 2:
                broken.setattr("gpupool.controller.memory.record_frame", away)
                with pytest.raises(OperationalError):
                    recorder.record(began + timedelta(seconds=5 * step))
                continue
            recorder.record(began + timedelta(seconds=5 * step))
        found = read_frame(began + timedelta(seconds=5 * step))
        assert found is not None
        assert found.tree.values == read_tree(now=began).values


def test_deltas_of_a_leader_before_whose_clock_is_ahead_are_passed_over() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    began, old, new = timezone.now(), MemoryRecorder(None), MemoryRecorder(None)
    Device.objects.update(observed_at=began + timedelta(days=2))
    for at, recorder, share in ((0, old, 0.1), (12, old, 0.9), (10, new, 0.2), (15, new, 0.3)):
        Instance.objects.update(kv_used=share)
        recorder.record(began + timedelta(seconds=at))
    tree = read_tree(now=began)
    found = read_frame(began + timedelta(seconds=16))
    assert found is not None
    assert found.tree.values == tree.values


def test_minutes_are_kept_once_each_and_pruned() -> None:
    two_tenants(an_online_node(a_device("gpu-0")))
    began = timezone.now().replace(second=0, microsecond=0)
    recorder, another = MemoryRecorder(None), MemoryRecorder(None)
    Device.objects.update(observed_at=began + timedelta(days=2))
    for step in range(25):
        recorder.record(began + timedelta(seconds=5 * step))
    another.record(began + timedelta(seconds=130))  # another leader in the same minute
    assert DeviceMinute.objects.count() == 3
    device = Device.objects.get()
    found = read_history(device.pk, "15m", now=began + timedelta(seconds=130))
    assert (len(found.series.values["weights"]), found.series.values["weights"][-3:]) == (15, [4608, 4608, 4608])
    assert found.series.values["weights"][-4] is None
    assert found.label == "node-1/0"
    forget_tenant(Tenant.objects.get(slug="acme").pk)
    assert MemoryFrame.objects.count() == 0
    assert read_history(device.pk, "15m", now=began + timedelta(seconds=130)).series.values["weights"][-1] == 2560
    recorder.record(began + timedelta(hours=26))
    assert DeviceMinute.objects.count() == 1

"""What placement is shown of the pool's rows."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from gpupool import services
from gpupool.controller.world import read_world
from gpupool.models import Device, Instance, Lease, ModelVersion, Node
from gpupool.policies.isolation import Isolation
from gpupool.policies.nearest import Shape
from gpupool.policies.placement import Placed, place
from gpupool.policies.reconcile import Place, Rules, Stop, reconcile
from gpupool.reads.placement import need_of, read_devices, read_quotas, read_reservations
from gpupool.services.reservations import create_reservation
from tenants.actor import SYSTEM
from tenants.models import Limit, Tenant
from tenants.services import create_tenant
from tenants.services.limits import boost_limit, create_limit
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def test_a_device_with_all_that_is_known_of_it() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    Node.objects.filter(pk=node.pk).update(maintenance=True, capabilities={"mps": {"available": True}})
    Device.objects.update(
        tags=["H100"],
        regions=[{"kind": "vram", "size_bytes": 16 * GIB, "latency_ns": 150.0, "access": ["read", "write", "compute"]}],
        capability={"precisions": ["fp16", "fp8"], "tensor_cores": True},
        links=[
            {"peer": "gpu-1", "kind": "pcie_host"},
            {"peer": "gpu-1", "kind": "nvlink"},
            {"peer": "gpu-2", "kind": "telepathy"},
        ],
        isolated_at=timezone.now(),
        isolated_reason="ECC errors.",
        memory_used_bytes=GIB,
    )
    (device,) = read_devices()
    assert (device.node_id, device.label) == (node.pk, "node-1/gpu-0")
    assert device.node is not None
    assert (device.node.maintenance, device.node.capabilities) == (True, {"mps": {"available": True}})
    assert (device.tags, device.precisions, device.tensor_cores) == (
        frozenset({"H100"}), frozenset({"fp16", "fp8"}), True,
    )  # fmt: skip
    assert device.links == {"gpu-1": "nvlink"}
    assert (device.regions[0].kind, device.regions[0].latency_ns) == ("vram", 150.0)
    assert (device.isolated, device.used_bytes) == ("ECC errors", GIB)


def test_claims_with_their_holders() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    version = a_version("m", memory_bytes=4 * GIB)
    ModelVersion.objects.filter(pk=version.pk).update(priority=1, isolation={"mps": True, "mps_clients": 2})
    instance, going = place_one(version, node), place_one(version, node)
    services.apply_observed(node.pk, node.session, seen(going, "ready", pid=7, port=21000))
    services.stop_instance(going.pk, actor=SYSTEM)
    device = Device.objects.get()
    Lease.objects.create(device=device, holder="somebody", memory_bytes=GIB, lease_id=99, fencing_token=99)
    (view,) = read_devices()
    assert view.claimed_bytes == 9 * GIB
    by_holder = {claim.holder: claim for claim in view.claims}
    kept, left = by_holder[instance.pk], by_holder[going.pk]
    assert (kept.priority, kept.mps_clients, kept.leaving) == (1, 2, False)
    assert left.leaving is True
    assert by_holder[None].memory_bytes == GIB


def test_a_node_is_reachable_by_its_liveness_and_by_its_record() -> None:
    node = an_online_node(a_device("gpu-0"))
    assert read_devices()[0].node_reachable
    assert read_devices([node.pk])[0].node_reachable
    assert not read_devices([uuid4()])[0].node_reachable


def test_what_a_version_asks_for() -> None:
    version = a_version("m", memory_bytes=4 * GIB)
    ModelVersion.objects.filter(pk=version.pk).update(
        devices=2, share=0.5, topology="required", strategy="pack", gpu_tag="H100", priority=1,
        request_shape={"batch": 8, "sequence_length": 2048, "precision": "bf16"}, isolation={"sandbox": "bubblewrap"},
    )  # fmt: skip
    need = need_of(ModelVersion.objects.select_related("model").get())
    assert (need.devices, need.share, need.topology, need.strategy) == (2, 0.5, "required", "pack")
    assert (need.gpu_tag, need.mem_limit_bytes) == ("H100", 32_768 << 20)
    assert (need.shape, need.precision) == (Shape(8, 2048, "bf16"), "bf16")
    assert need.isolation == Isolation(sandbox="bubblewrap")
    version.refresh_from_db()
    version.mem_limit_mb, version.isolation, version.request_shape = 100, {"sandbox": "wood"}, {"batch": 8}
    need = need_of(version)
    assert (need.mem_limit_bytes, need.isolation, need.shape) == (100 << 20, Isolation(), None)


# Quotas and rights


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def gpus(tenant: Tenant | None = None, **limit: object) -> Limit:
    return create_limit(metric="gpus", window="standing", amount=1, tenant=tenant, actor=SYSTEM, **limit)  # type: ignore[arg-type]  # members by name


def test_a_limit_counts_what_the_tenant_holds_and_its_departments_where_it_says_so(acme: Tenant) -> None:
    lab = create_tenant(slug="lab", name="Lab", actor=SYSTEM)
    Tenant.objects.filter(pk=lab.pk).update(parent=acme)
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    services.create_model("labs", tenant_id=lab.pk, actor=SYSTEM)
    place_one(a_version("labs", memory_bytes=4 * GIB), node)
    place_one(a_version("everybodys", memory_bytes=2 * GIB), node)
    own, family = gpus(acme), gpus(acme, subtree=True)
    all_of_us, of_model = gpus(), gpus(model="labs")
    found = {quota.quota_id: quota for quota in read_quotas(NOW)}
    assert found[own.pk].held_devices == frozenset()
    assert found[family.pk].held_bytes == 4 * GIB
    assert found[all_of_us.pk].held_bytes == 6 * GIB
    assert (found[of_model.pk].held_bytes, found[of_model.pk].model) == (4 * GIB, "labs")
    need = need_of(ModelVersion.objects.select_related("model").get(model__name="labs"))
    assert [found[one.pk].counts(need) for one in (own, family, all_of_us, of_model)] == [False, True, True, True]


def test_a_boost_counts_while_it_lasts(acme: Tenant) -> None:
    limit = gpus(acme)
    until = timezone.now() + timedelta(hours=1)
    boost_limit(limit.pk, amount=5, until=until, actor=SYSTEM)
    assert [quota.amount for quota in read_quotas(until - timedelta(minutes=1))] == [5]
    assert [quota.amount for quota in read_quotas(until)] == [1]


def test_without_limits_there_is_none() -> None:
    assert read_quotas(NOW) == []


def test_reservations_name_their_tenant(acme: Tenant) -> None:
    create_reservation(acme.pk, devices=2, gpu_tag="H100", lendable=False, actor=SYSTEM)
    (one,) = read_reservations()
    assert (one.tenant, one.devices, one.gpu_tag, one.lendable) == ("acme", 2, "H100", False)


# The whole way


def _plan(node_id: object) -> tuple[object, ...]:
    nodes = list(Node.objects.values_list("pk", flat=True))
    world = read_world(now=timezone.now(), connected=nodes, live_nodes=nodes, answering=[])
    return reconcile(world, Rules()).actions


def test_a_more_important_version_takes_the_place_of_a_less_important_one(acme: Tenant) -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    low = a_version("low", memory_bytes=12 * GIB, replicas=1)
    ModelVersion.objects.filter(pk=low.pk).update(priority=-1)
    victim = place_one(low, node)
    high = a_version("high", memory_bytes=12 * GIB, replicas=1)
    ModelVersion.objects.filter(pk=high.pk).update(priority=1)
    waiting = services.request_instance(high.pk, actor=SYSTEM)
    stops = [action for action in _plan(node.pk) if isinstance(action, Stop)]
    assert [(stop.instance_id, stop.reason) for stop in stops] == [(victim.pk, "It makes room for high v1.")]
    services.stop_instance(victim.pk, actor=SYSTEM, reason=stops[0].reason)
    again = services.request_instance(low.pk, actor=SYSTEM)  # its version still wants one
    assert not any(isinstance(action, Place | Stop) for action in _plan(node.pk))  # they wait for it to be gone
    services.apply_observed(node.pk, node.session, seen(victim, "stopped"))
    placed = [action for action in _plan(node.pk) if isinstance(action, Place)]
    assert [action.instance_id for action in placed] == [waiting.pk]
    assert Instance.objects.get(pk=again.pk).state == "requested"


def test_several_devices_and_the_host_are_claimed_together() -> None:
    node = an_online_node(
        a_device("gpu-0", memory_bytes=16 * GIB),
        a_device("gpu-1", memory_bytes=16 * GIB),
        a_device("host", kind="cpu", memory_bytes=64 * GIB),
    )
    Device.objects.filter(stable_id="gpu-0").update(links=[{"peer": "gpu-1", "kind": "nvlink"}])
    version = a_version("m", memory_bytes=8 * GIB, replicas=1)
    ModelVersion.objects.filter(pk=version.pk).update(
        devices=2, topology="required", host_memory_bytes=8 * GIB, whole_device=True
    )
    instance = services.request_instance(version.pk, actor=SYSTEM)
    (action,) = [one for one in _plan(node.pk) if isinstance(one, Place)]
    services.claim_and_place(action.instance_id, *action.device_ids, actor=SYSTEM)
    leases = Lease.objects.filter(holder=f"instance:{instance.pk}").order_by("device__stable_id")
    assert [(one.device.stable_id, one.memory_bytes, one.whole) for one in leases] == [
        ("gpu-0", 8 * GIB, True), ("gpu-1", 8 * GIB, True), ("host", 8 * GIB, False),
    ]  # fmt: skip
    assert not isinstance(place(read_devices(), need_of(a_version("n", memory_bytes=GIB))), Placed)


def test_what_is_bound_to_a_tenant_counts_as_the_tenants(acme: Tenant) -> None:
    """Of a version that everybody may use, and of a version of its own of a model that others share."""
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    limit = gpus(acme)
    bound, own = a_version("shared", memory_bytes=2 * GIB), a_version("shared-too", memory_bytes=4 * GIB)
    instance = services.request_instance(bound.pk, actor=SYSTEM, tenant_id=acme.pk, pooled=True)
    device = Device.objects.get()
    services.claim_and_place(instance.pk, device.pk, actor=SYSTEM)
    ModelVersion.objects.filter(pk=own.pk).update(tenant_id=acme.pk)
    place_one(own, node)
    (quota,) = read_quotas(NOW)
    assert (quota.quota_id, quota.held_devices, quota.held_bytes) == (limit.pk, frozenset({device.pk}), 6 * GIB)
    assert {claim.tenant_id for claim in read_devices()[0].claims} == {acme.pk}
    assert set(Lease.objects.values_list("tenant_id", flat=True)) == {acme.pk}


def test_on_the_host_memory_beside_it_is_of_the_same_device() -> None:
    """What is decided is claimed: a decision that the claim refuses would be made again at every look."""
    node = an_online_node(a_device("host", kind="cpu", memory_bytes=16 * GIB))
    version = a_version("m", memory_bytes=10 * GIB, device_kind="cpu", replicas=1)
    ModelVersion.objects.filter(pk=version.pk).update(host_memory_bytes=8 * GIB)
    services.request_instance(version.pk, actor=SYSTEM)
    assert not [one for one in _plan(node.pk) if isinstance(one, Place)]
    ModelVersion.objects.filter(pk=version.pk).update(host_memory_bytes=4 * GIB)
    (action,) = [one for one in _plan(node.pk) if isinstance(one, Place)]
    services.claim_and_place(action.instance_id, *action.device_ids, actor=SYSTEM)
    assert Lease.objects.get().memory_bytes == 14 * GIB

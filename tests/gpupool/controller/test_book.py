"""The leader and its book: placed over several devices, crashed between store and database, silent nodes, and back."""

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from core.clock import SystemClock
from gpupool import services
from gpupool.controller.book import BookKeeper
from gpupool.leases.base import CreatedAt, Delete, LeaseStore
from gpupool.leases.devices import DeviceBook
from gpupool.leases.fencing import Fence, Superseded
from gpupool.leases.liveness import NodeLiveness
from gpupool.models import Device, Instance, InstanceState, Lease, ModelVersion
from gpupool.policies.device_record import Status
from gpupool.policies.lease import Portion
from tenants.actor import SYSTEM
from tests.gpupool.leases.contract import put
from tests.gpupool.pool import (
    GIB,
    OnlineNode,
    a_device,
    a_hello,
    a_version,
    an_online_node,
    place_one,
    seen,
)

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")


both_stores = pytest.mark.parametrize("store", ["postgres", "etcd"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, transactional_db: None) -> LeaseStore:
    opened: LeaseStore = request.getfixturevalue(f"{getattr(request, 'param', 'postgres')}_store")
    return opened


async def in_thread(call: Callable[[], T]) -> T:
    return await sync_to_async(call)()


def a_keeper(store: LeaseStore, *, fence: int = 1, base: int = 0) -> tuple[BookKeeper, DeviceBook]:
    book = DeviceBook(store, clock=SystemClock(), base=base)
    return BookKeeper(book, fence=Fence("controller", fence), in_thread=in_thread), book


async def a_node(store: LeaseStore, *gpus: str, name: str = "node-1") -> OnlineNode:
    """A node that is alive, with a host of 64 GiB and these GPUs of 16 GiB."""
    devices = [a_device("host", kind="cpu", memory_bytes=64 * GIB), *(a_device(gpu) for gpu in gpus)]
    node = await in_thread(lambda: an_online_node(*devices, name=name))
    await NodeLiveness(store, node.pk, ttl_seconds=60).heard()
    return node


async def ids(node: OnlineNode, *names: str) -> list[UUID]:
    return [(await Device.objects.aget(node=node.pk, stable_id=name)).pk for name in names]


async def waiting(name: str, **columns: object) -> Instance:
    """An instance of a new version, not placed yet."""
    version = await in_thread(lambda: a_version(name, memory_bytes=6 * GIB))
    await ModelVersion.objects.filter(pk=version.pk).aupdate(**columns)
    return await in_thread(lambda: services.request_instance(version.pk, actor=SYSTEM))


@both_stores
@pytest.mark.shows("R122", "P1")
async def test_one_claim_over_two_cards_and_the_hosts_memory_is_in_book_and_database_alike(store: LeaseStore) -> None:
    node, (keeper, _) = await a_node(store, "gpu-0", "gpu-1"), a_keeper(store)
    await keeper.look()
    instance = await waiting("m", devices=2, share=0.5, host_memory_bytes=2 * GIB)
    first, second, host = await ids(node, "gpu-0", "gpu-1", "host")
    await keeper.place(instance.pk, (first, second))
    await instance.arefresh_from_db()
    assert (instance.state, instance.node_id, instance.host_memory_bytes) == (InstanceState.STAGING, node.pk, 2 * GIB)
    leases = {lease.device_id: lease async for lease in Lease.objects.all()}
    assert {pk: (one.memory_bytes, one.share) for pk, one in leases.items()} == {
        first: (6 * GIB, 0.5), second: (6 * GIB, 0.5), host: (2 * GIB, None)
    }  # fmt: skip
    assert {(one.lease_id, one.fencing_token) for one in leases.values()} == {(instance.lease_id, instance.lease_id)}
    view = await keeper.look()
    claim = view.book.claims[f"instance:{instance.pk}"]
    assert claim.token == instance.fencing_token
    assert claim.record.portions[host] == Portion(2 * GIB)
    assert {record.status for record in view.book.records.values()} == {Status.ALLOCATED}


@pytest.mark.shows("P12")
async def test_a_claim_ends_in_the_book_once_its_instance_has_stopped(store: LeaseStore) -> None:
    node, (keeper, _) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    instance = await waiting("m")
    await keeper.place(instance.pk, await ids(node, "gpu-0"))
    await instance.arefresh_from_db()
    await in_thread(lambda: services.stop_instance(instance.pk, actor=SYSTEM))
    assert len((await keeper.look()).book.claims) == 1  # its process may well run still
    await in_thread(lambda: services.apply_observed(node.pk, node.session, seen(instance, "stopped")))
    view = await keeper.look()
    assert view.book.claims == {}
    assert {record.status for record in view.book.records.values()} == {Status.FREE}


@both_stores
@pytest.mark.shows("P12", "P15")
async def test_a_leader_who_dies_between_store_and_database_leaves_nothing_claimed(store: LeaseStore) -> None:
    node, (keeper, book) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    instance = await waiting("m")
    (gpu,) = await ids(node, "gpu-0")
    await book.allocate(f"instance:{instance.pk}", {gpu: Portion(16 * GIB)}, node_id=node.pk, boot_id="first")
    following, _ = a_keeper(store, fence=2)
    assert (await following.look()).book.claims == {}
    await following.place(instance.pk, [gpu])
    assert await Lease.objects.filter(released_at=None).acount() == 1


@pytest.mark.shows("P11")
async def test_a_leader_who_was_replaced_in_between_writes_nothing_down_and_gives_the_claim_back(
    store: LeaseStore,
) -> None:
    node, (keeper, book) = await a_node(store, "gpu-0"), a_keeper(store, fence=1)
    await keeper.look()
    instance = await waiting("m")
    newer = Fence("controller", 2)
    await in_thread(lambda: services.explain_waiting(instance.pk, "seen", actor=SYSTEM, fence=newer))
    with pytest.raises(Superseded):
        await keeper.place(instance.pk, await ids(node, "gpu-0"))
    assert not await Lease.objects.aexists()
    assert (await book.read()).book.claims == {}


@both_stores
async def test_what_the_database_alone_knows_is_taken_into_the_book_as_it_is(store: LeaseStore) -> None:
    """An upgrade, or a store that was lost: engines run on under the tokens they have."""
    node = await a_node(store, "gpu-0", "gpu-1")
    held = await in_thread(lambda: place_one(a_version("m"), node))
    keeper, _ = a_keeper(store, base=1000)
    view = await keeper.look()
    assert view.book.claims[f"instance:{held.pk}"].token == held.fencing_token
    instance = await waiting("n")
    await keeper.place(instance.pk, await ids(node, "gpu-0"))
    await instance.arefresh_from_db()
    assert instance.fencing_token > max(held.fencing_token, 1000)


async def test_a_refusal_of_the_book_is_told_to_who_waits(store: LeaseStore) -> None:
    node, (keeper, book) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    (gpu,) = await ids(node, "gpu-0")
    await book.allocate("batch/pod-1", {gpu: Portion(12 * GIB)}, node_id=node.pk, boot_id="first")
    instance = await waiting("m")
    await keeper.place(instance.pk, [gpu])
    await instance.arefresh_from_db()
    assert (instance.state, instance.reason) == (
        InstanceState.REQUESTED, "gpu-0: it needs 6.0 GiB, 4.0 GiB can be claimed.",
    )  # fmt: skip


@pytest.mark.shows("P1")
async def test_the_database_compares_the_sums_too_and_what_the_store_granted_in_vain_ends(store: LeaseStore) -> None:
    node, (keeper, book) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    (gpu,) = await ids(node, "gpu-0")
    version = await in_thread(lambda: a_version("sleeper", memory_bytes=12 * GIB))
    woken = await in_thread(lambda: services.request_instance(version.pk, actor=SYSTEM))
    # Claimed in the database meanwhile, as by an instance that wakes: the book does not know yet.
    assert isinstance(await in_thread(lambda: services.claim_and_place(woken.pk, gpu, actor=SYSTEM)), Lease)
    late = await waiting("late")
    await keeper.place(late.pk, [gpu])
    await late.arefresh_from_db()
    assert (late.state, late.reason) == (
        InstanceState.REQUESTED, "gpu-0: it needs 6.0 GiB, 4.0 GiB can be claimed.",
    )  # fmt: skip
    assert (await book.read()).book.claims == {}
    assert list((await keeper.look()).book.claims) == [f"instance:{woken.pk}"]


async def test_a_claim_that_was_resized_in_the_database_is_so_in_the_book_under_its_token(store: LeaseStore) -> None:
    node, (keeper, _) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    instance = await waiting("m")
    (gpu,) = await ids(node, "gpu-0")
    await keeper.place(instance.pk, [gpu])
    token = (await keeper.look()).book.claims[f"instance:{instance.pk}"].token
    await Lease.objects.aupdate(memory_bytes=GIB)  # it sleeps
    view = await keeper.look()
    claim = view.book.claims[f"instance:{instance.pk}"]
    assert (claim.token, dict(claim.record.portions)) == (token, {gpu: Portion(GIB)})
    assert [held.memory_bytes for held in view.book.records[gpu].claims] == [GIB]


async def test_what_changed_since_the_choice_is_told_and_claims_nothing(store: LeaseStore) -> None:
    node, (keeper, book) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    instance = await waiting("m")
    await in_thread(lambda: services.set_node_cordoned(node.pk, True, actor=SYSTEM))
    await keeper.place(instance.pk, await ids(node, "gpu-0"))
    await instance.arefresh_from_db()
    assert instance.reason == "Node node-1 is cordoned."
    assert (await book.read()).book.claims == {}


@both_stores
@pytest.mark.shows("P13", "P15")
async def test_devices_of_a_silent_node_are_unknown_keep_their_claims_and_come_back(store: LeaseStore) -> None:
    node, (keeper, _) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    held = await waiting("m")
    (gpu,) = await ids(node, "gpu-0")
    await keeper.place(held.pk, [gpu])
    await store.transact([], [Delete(f"/gpu/nodes/{node.pk}/health")])  # as if its time had run out
    await in_thread(lambda: services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM))
    view = await keeper.look()
    assert {record.status for record in view.book.records.values()} == {Status.UNKNOWN}
    assert len(view.book.records[gpu].claims) == 1
    late = await waiting("n")
    await keeper.place(late.pk, [gpu])
    assert await Lease.objects.acount() == 1

    await NodeLiveness(store, node.pk, ttl_seconds=60).heard()
    gpus = (a_device("host", kind="cpu", memory_bytes=64 * GIB), a_device("gpu-0"))
    await in_thread(lambda: services.apply_hello(node.pk, a_hello(node.name, *gpus)))
    view = await keeper.look()
    # The agent does not list the engine, so that it failed; the claim is the instance's until that has stopped.
    assert view.book.records[gpu].status == Status.ALLOCATED


@pytest.mark.shows("P19")
async def test_a_node_that_was_restarted_has_a_book_without_claims(store: LeaseStore) -> None:
    node, (keeper, _) = await a_node(store, "gpu-0"), a_keeper(store)
    await keeper.look()
    held = await waiting("m")
    (gpu,) = await ids(node, "gpu-0")
    await keeper.place(held.pk, [gpu])
    gpus = (a_device("host", kind="cpu", memory_bytes=64 * GIB), a_device("gpu-0"))
    await in_thread(lambda: services.apply_hello(node.pk, a_hello(node.name, *gpus, boot_id="second")))
    view = await keeper.look()
    assert view.book.claims == {}
    assert (view.book.records[gpu].status, view.book.records[gpu].boot_id) == (Status.FREE, "second")


async def test_a_replaced_leader_finds_out_at_its_first_write_in_the_store(store: LeaseStore) -> None:
    await a_node(store, "gpu-0")
    won = await put(store, "/leader/controller", b"one")
    book = DeviceBook(store, clock=SystemClock(), guards=[CreatedAt("/leader/controller", won)])
    keeper = BookKeeper(book, fence=Fence("controller", 1), in_thread=in_thread)
    await store.transact([], [Delete("/leader/controller")])
    with pytest.raises(Superseded):
        await keeper.look()

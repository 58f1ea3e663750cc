"""Tokens over the life of an installation: a store is wiped, exchanged, restored; whoever is late stays late."""

import asyncio
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async

from gpupool import services
from gpupool.leases.base import LeaseStore
from gpupool.leases.devices import Allocated
from gpupool.leases.etcd import EtcdStore
from gpupool.leases.etcd_address import parse_etcd_url
from gpupool.leases.fencing import Fence, Superseded, raise_fence
from gpupool.leases.tokens import known_base, settle_base
from gpupool.models import Device, FencingBase
from gpupool.policies.lease import Portion
from tenants.actor import SYSTEM
from tests.gpupool.leases.books import NODE, a_book, device, facts_of, settle
from tests.gpupool.leases.contract import PATIENCE_SECONDS, put
from tests.gpupool.leases.etcd_server import EtcdServer, an_etcd, needs_etcd
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with an_etcd() as started:
        yield started


async def _lead(store: LeaseStore) -> Fence:
    """A leadership is won, with the fence that its leader then writes under."""
    revision = await put(store, "/leader/controller", b"me")
    base = await settle_base(store)
    fence = Fence("controller", base + revision)
    await sync_to_async(raise_fence)(fence)
    return fence


async def _token(store: LeaseStore, base: int) -> int:
    book = a_book(store, base=base)
    await settle(book, [facts_of(0)])
    claim = await book.allocate("instance:a", {device(0): Portion(1)}, node_id=NODE, boot_id="first")
    assert isinstance(claim, Allocated)
    return claim.token


@needs_etcd
@pytest.mark.shows("P11")
async def test_a_store_that_was_wiped_gives_no_token_twice_and_locks_no_leader_out(server: EtcdServer) -> None:
    store = EtcdStore(parse_etcd_url(server.url), deadline_seconds=PATIENCE_SECONDS)
    for _ in range(50):
        await put(store, "/a", b"x")
    first = await _lead(store)
    assert (await _lead(store)).revision > first.revision  # of the same store, the base stays
    assert await sync_to_async(known_base)() == 0
    token = await _token(store, 0)
    last = await _lead(store)
    await store.close()
    server.wipe()
    server.start()
    store = EtcdStore(parse_etcd_url(server.url), deadline_seconds=PATIENCE_SECONDS)
    again = await _lead(store)
    assert again.revision > max(last.revision, token)
    base = await sync_to_async(known_base)()
    assert await _token(store, base) > max(again.revision - 10, token)
    with pytest.raises(Superseded):
        await sync_to_async(raise_fence)(last)
    await store.close()


@needs_etcd
async def test_from_postgresql_to_etcd_and_back_tokens_grow(server: EtcdServer, postgres_store: LeaseStore) -> None:
    etcd = EtcdStore(parse_etcd_url(server.url), deadline_seconds=PATIENCE_SECONDS)
    node = await sync_to_async(an_online_node)(a_device("gpu-0"))
    for _ in range(100):
        await put(postgres_store, "/a", b"x")
    fences = [await _lead(postgres_store)]
    held = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), node)
    for store in (etcd, postgres_store, etcd):
        fences.append(await _lead(store))
        assert fences[-1].revision > max(fences[-2].revision, held.fencing_token)
    await etcd.close()


async def test_a_store_restored_from_a_backup_counts_above_what_it_had_come_to(any_store: LeaseStore) -> None:
    fence = await _lead(any_store)
    # As after a restore: the store is behind what was recorded of it.
    await FencingBase.objects.aupdate(newest_revision=fence.revision + 1000)
    again = await _lead(any_store)
    assert again.revision > fence.revision + 1000


async def test_a_leader_who_comes_late_does_not_raise_the_base_over_the_one_who_followed(any_store: LeaseStore) -> None:
    await _lead(any_store)
    late = await put(any_store, "/leader/controller", b"late")
    newer = await _lead(any_store)
    base = await settle_base(any_store)  # now the late one wakes up
    with pytest.raises(Superseded):
        await sync_to_async(raise_fence)(Fence("controller", base + late))
    await sync_to_async(raise_fence)(newer)


async def test_of_two_who_settle_a_base_at_once_both_have_the_same(any_store: LeaseStore) -> None:
    bases = await asyncio.gather(settle_base(any_store), settle_base(any_store))
    assert len(set(bases)) == 1


async def test_a_claim_with_a_token_of_the_past_is_not_written_down(transactional_db: None) -> None:
    def claim() -> None:
        held = place_one(a_version("m"), an_online_node(a_device("gpu-0")))
        instance = services.request_instance(held.version_id, actor=SYSTEM)
        numbers = services.ClaimNumbers(lease_id=held.fencing_token, fencing_token=held.fencing_token)
        with pytest.raises(Superseded, match="gone back"):
            services.claim_and_place(instance.pk, Device.objects.get().pk, actor=SYSTEM, numbers=numbers)

    await sync_to_async(claim)()

"""The controller in this process, on a real store: attached engines, silent nodes, waiting instances."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from core.clock import SystemClock
from gpupool import services
from gpupool.controller import prober
from gpupool.controller.loop import Controller
from gpupool.controller.targets import list_silent_targets
from gpupool.leases.liveness import NodeLiveness
from gpupool.leases.postgres import PostgresStore
from gpupool.models import Instance, InstanceState, Lease, ModelVersion, Node, NodeState
from gpupool.policies.instance import State
from gpupool.policies.reconcile import Rules
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.gpupool.engine_stub import EngineStub
from tests.gpupool.leases.contract import PATIENCE_SECONDS, eventually
from tests.gpupool.pool import OnlineNode, a_device, a_hello, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def store(embedded_postgres_url: str, transactional_db: None) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS, poll_seconds=0.05)
    yield opened
    await opened.close()


@asynccontextmanager
async def running(
    store: PostgresStore, rules: Rules | None = None, *, resync_seconds: float = 10.0
) -> AsyncIterator["asyncio.Task[None]"]:
    controller = Controller(
        store,
        identity="test",
        lease_seconds=5.0,
        rules=rules or Rules(),
        clock=SystemClock(),
        poll_seconds=0.05,
        probe_seconds=0.1,
        resync_seconds=resync_seconds,
    )
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _state(instance: Instance, *wanted: str, reason: str = "") -> Instance:
    """The instance in one of these states, for a reason with these words: one probe may not be answered in time."""

    async def look() -> Instance | None:
        return await Instance.objects.filter(pk=instance.pk, state__in=wanted, reason__contains=reason).afirst()

    found = await eventually(look)
    assert found is not None
    return found


async def test_an_attached_engine_comes_goes_and_comes_back(store: PostgresStore) -> None:
    with EngineStub() as engine:
        attached = await sync_to_async(services.attach_engine)(
            engine.url, engine="vllm", model_name="llama", actor=SYSTEM
        )
        async with running(store):
            failed = await _state(attached.instance, InstanceState.FAILED, reason="It serves")
            assert failed.reason == "It serves nothing, not llama."
            engine.models.append("llama")
            await _state(attached.instance, InstanceState.READY)
            engine.healthy = False
            await _state(attached.instance, InstanceState.FAILED, reason="503")
            engine.healthy = True
            await _state(attached.instance, InstanceState.READY)
    assert not any("completions" in path for path in engine.asked)


async def test_an_engine_with_an_odd_name_keeps_no_other_one_waiting(store: PostgresStore) -> None:
    with EngineStub("a\x00b\x1b[31m" + "c" * 5000) as odd, EngineStub("llama") as engine:
        attach = sync_to_async(services.attach_engine)
        first = await attach(odd.url, engine="vllm", model_name="odd", actor=SYSTEM)
        second = await attach(engine.url, engine="vllm", model_name="llama", actor=SYSTEM)
        async with running(store):
            await _state(second.instance, InstanceState.READY)
            failed = await _state(first.instance, InstanceState.FAILED, reason="It serves")
    assert failed.reason.startswith("It serves a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31mccc")
    assert len(failed.reason) < 200


async def _explained(store: PostgresStore, name: str, words: str) -> None:
    """Wants an instance of a new model that has no place, and waits for the controller to say so: it has looked."""
    await sync_to_async(a_version)(name, replicas=1, device_kind="cpu")

    async def look() -> bool:
        return await Instance.objects.filter(version__model__name=name, reason__contains=words).aexists()

    await eventually(look)


async def test_a_version_without_a_size_stops_nothing_but_itself(store: PostgresStore) -> None:
    version = await sync_to_async(a_version)("m", replicas=1)
    await ModelVersion.objects.filter(pk=version.pk).aupdate(memory_bytes=0)  # as in the backoffice
    async with running(store) as controller:
        await _explained(store, "other", "no node agent has connected")
        assert not controller.done()
    assert "does not say how many bytes" in (await Instance.objects.aget(version=version)).reason


async def test_a_lost_claim_is_found_also_while_there_is_always_something_to_look_at(store: PostgresStore) -> None:
    node = await sync_to_async(an_online_node)(a_device("gpu-0"))
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), node)
    async with running(store, resync_seconds=0.5):
        await _explained(store, "other", "There is no cpu")
        await Instance.objects.filter(pk=instance.pk).aupdate(state=InstanceState.STOPPED)  # a release was forgotten

        async def released() -> bool:
            await sync_to_async(services.set_node_cordoned)(node.pk, True, actor=SYSTEM)
            await sync_to_async(services.set_node_cordoned)(node.pk, False, actor=SYSTEM)
            return not await Lease.objects.filter(released_at=None).aexists()

        await eventually(released)


async def test_a_wanted_instance_is_asked_for_placed_and_explained(store: PostgresStore) -> None:
    await sync_to_async(a_version)("m", replicas=1, device_kind="gpu")
    async with running(store):

        async def explained() -> bool:
            return await Instance.objects.filter(reason__contains="no node agent has connected").aexists()

        await eventually(explained)
        created = await sync_to_async(services.create_node)("node-1", actor=SYSTEM)
        await NodeLiveness(store, created.node.pk, ttl_seconds=60).heard()
        await sync_to_async(services.apply_hello)(created.node.pk, a_hello("node-1", a_device("gpu-0")))

        async def placed() -> bool:
            return await Instance.objects.filter(state=InstanceState.STAGING, node=created.node.pk).aexists()

        await eventually(placed)
    assert await AuditEvent.objects.filter(action="lease.claimed").acount() == 1
    assert await Node.objects.filter(state=NodeState.ONLINE).aexists()  # not taken for silent as it came


async def test_what_waits_for_an_engine_that_is_off_says_so_and_is_placed_once_it_is_on(store: PostgresStore) -> None:
    created = await sync_to_async(an_online_node)(a_device("gpu-0"))
    await NodeLiveness(store, created.pk, ttl_seconds=60).heard()
    await sync_to_async(services.set_engine_enabled)("llamacpp", False, actor=SYSTEM)
    await sync_to_async(a_version)("m", replicas=1, device_kind="gpu")
    async with running(store):

        async def explained() -> bool:
            waiting = Instance.objects.filter(state=InstanceState.REQUESTED)
            return await waiting.filter(reason="The engine llama.cpp is switched off.").aexists()

        await eventually(explained)
        await sync_to_async(services.set_engine_enabled)("llamacpp", True, actor=SYSTEM)

        async def placed() -> bool:
            return await Instance.objects.filter(state=InstanceState.STAGING).aexists()

        await eventually(placed)


async def test_an_instance_of_an_engine_that_is_gone_stops_no_probe_of_others(store: PostgresStore) -> None:
    with EngineStub("llama") as engine:
        lost = (
            await sync_to_async(services.attach_engine)(engine.url, engine="vllm", model_name="lost", actor=SYSTEM)
        ).instance
        await Instance.objects.filter(pk=lost.pk).aupdate(engine="uninstalled")
        kept = (
            await sync_to_async(services.attach_engine)(engine.url, engine="vllm", model_name="llama", actor=SYSTEM)
        ).instance
        async with running(store):
            await _state(kept, InstanceState.READY)
            failed = await _state(lost, InstanceState.FAILED)
    assert "no engine 'uninstalled'" in failed.reason


async def _silent_node(store: PostgresStore, *, address_of: EngineStub | None) -> tuple[OnlineNode, Instance]:
    """A node that was heard once, with a serving instance that listens where the stub does (or nowhere)."""
    node = await sync_to_async(an_online_node)(a_device("gpu-0"))
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("llama", replicas=1), node)
    port = 9 if address_of is None else int(address_of.url.rpartition(":")[2])
    report = await sync_to_async(seen)(instance, "ready", pid=7, port=port)
    await sync_to_async(services.apply_observed)(node.pk, node.session, report)
    return node, instance


async def _unreachable(node_id: UUID) -> None:
    async def look() -> bool:
        return await Node.objects.filter(pk=node_id, state=NodeState.UNREACHABLE).aexists()

    await eventually(look)


async def test_an_engine_of_a_silent_node_serves_on_while_it_answers_and_is_unknown_when_not(
    store: PostgresStore,
) -> None:
    with EngineStub("llama") as engine:
        node, instance = await _silent_node(store, address_of=engine)
        async with running(store):
            await _unreachable(node.pk)
            await _state(instance, InstanceState.READY)
            engine.healthy = False
            await _state(instance, InstanceState.UNKNOWN)
            engine.healthy = True
            back = await _state(instance, InstanceState.READY)
            assert back.reason == "Its node is silent, but it answers."


class HungStub(EngineStub):
    """Takes connections and says nothing, once told to."""

    def __init__(self, *models: str) -> None:
        super().__init__(*models)
        self.asked_in_vain, self.released = Event(), Event()
        self.hangs = False

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if self.hangs:
            self.asked_in_vain.set()
            self.released.wait(90)
        return super().answer(path, authorization)


async def test_a_machine_that_is_off_keeps_no_other_work_waiting(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober.probe, "__kwdefaults__", {"deadline_seconds": 60.0})
    with HungStub("llama") as engine:
        engine.healthy = False
        _, instance = await _silent_node(store, address_of=engine)
        async with running(store):
            await _state(instance, InstanceState.UNKNOWN)
            engine.hangs = True
            assert await asyncio.to_thread(engine.asked_in_vain.wait, 30)
            async with asyncio.timeout(30):  # before that probe is given up
                await _explained(store, "other", "There is no cpu")
        engine.released.set()


@pytest.mark.shows("P9")
async def test_when_every_node_is_silent_nothing_is_asked_for_or_stopped(store: PostgresStore) -> None:
    node, instance = await _silent_node(store, address_of=None)
    async with running(store, Rules(unknown_grace_seconds=0.0)):
        await _unreachable(node.pk)
        await _state(instance, InstanceState.UNKNOWN)
        # Its grace is over at once, and still: looks later there is this one instance of its version.
        await _explained(store, "other", "There is no cpu")
    only = await Instance.objects.aget(version__model__name="llama")
    assert (only.pk, only.state, only.desire) == (instance.pk, InstanceState.UNKNOWN, "running")


async def test_an_engine_of_another_node_does_not_answer_for_a_silent_one(store: PostgresStore) -> None:
    with EngineStub("llama") as engine:
        node, instance = await _silent_node(store, address_of=engine)
        assert [target.instance_id for target in await sync_to_async(list_silent_targets)([], State.READY)] == [
            instance.pk
        ]
        other = await sync_to_async(an_online_node)(a_device("gpu-1"), name="node-2")
        second = await sync_to_async(place_one)(await sync_to_async(a_version)("llama"), other)
        port = int(engine.url.rpartition(":")[2])
        report = await sync_to_async(seen)(second, "ready", pid=8, port=port)
        await sync_to_async(services.apply_observed)(other.pk, other.session, report)
        assert await sync_to_async(list_silent_targets)([other.pk], State.READY) == []
        assert node.pk != other.pk

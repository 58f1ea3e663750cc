"""Endpoints that fail, refuse, are full, hang and come back, behind a door with the real balancer."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest

from core.clock import ManualClock
from core.errors import GatehouseError
from core.ids import uuid7
from core.telemetry.metrics import render_metrics
from gateway.policies.breaker import OPEN_SECONDS, BreakerState
from gateway.policies.retry import FLOOR
from gateway.relay.deadlines import Deadlines
from gateway.relay.housekeeping import Housekeeping
from gateway.relay.picker import Balancer
from gateway.relay.plan import Decision, Endpoint, Outcome, Ready, Rejected, SlimRequest
from gateway.relay.rows import ENDPOINTS, EndpointRow
from gateway.relay.snapshot import Snapshot
from gateway.relay.timeouts import client_timeout_seconds
from tests.doubles.engine import EngineDouble, Received, Wire, answers, chat_stream, chunk, completion, die, streams
from tests.doubles.engine import stall as stall_script
from tests.gateway.relay.door.house import DoorHouse, chat, free_port, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]
MODEL = uuid4()


class Balanced:
    """A door whose pipeline picks with a balancer over a snapshot that the test writes; its clock is the test's."""

    def __init__(self, house: DoorHouse) -> None:
        self.house = house
        self.clock = ManualClock()
        self.snapshot = Snapshot()
        self.balancer = Balancer(self.snapshot, clock=self.clock, random=cycle((0.1, 0.6, 0.9, 0.3)).__next__)
        self._admit = house.pipeline.prepare
        self._admit_now = house.pipeline.prepare_now
        house.pipeline.prepare = self._prepare  # type: ignore[method-assign]
        house.pipeline.prepare_now = self._prepare_now  # type: ignore[method-assign]

    @classmethod
    async def start(cls, open_door: OpenDoor, *ports: int, **options: Any) -> "Balanced":
        balanced = cls(await open_door(**options))
        for port in ports:
            balanced.add(port)
        return balanced

    def add(self, port: int) -> Endpoint:
        endpoint = Endpoint(uuid7(), uuid7(), "openai", "127.0.0.1", port, "", "served")
        self.snapshot.apply(ENDPOINTS, [], [EndpointRow(endpoint.instance_id, MODEL, endpoint)])
        return endpoint

    def state(self, number: int = 0) -> BreakerState:
        endpoint = self.snapshot.endpoints(MODEL)[number]
        return self.balancer.breaker(endpoint.instance_id).state

    async def _prepare(self, request: SlimRequest) -> Decision:
        decision = await self._admit(request)
        return self._balance(decision) if isinstance(decision, Ready) else decision

    def _prepare_now(self, request: SlimRequest) -> Ready | None:
        ready = self._admit_now(request)
        decision = None if ready is None else self._balance(ready)
        return decision if isinstance(decision, Ready) else None

    def _balance(self, ready: Ready) -> Decision:
        ready.picker = self.balancer.picker(MODEL, ready.work.api)
        try:
            ready.timeout_seconds = client_timeout_seconds(ready.request.headers)
        except GatehouseError as error:
            return Rejected(error)
        return ready


async def fail(_request: Received, wire: Wire) -> None:
    await answers(b"<html>", status=500, content_type="text/html")(_request, wire)


async def test_an_engine_that_fails_is_left_alone_until_one_trial_succeeds(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(*[fail] * 10, answers(completion())) as broken,
        EngineDouble(answers(completion())) as sound,
    ):
        door = await Balanced.start(open_door, broken.port, sound.port)
        for _ in range(60):
            assert (await door.house.ask(chat())).status == 200
        assert len(broken.received) == 10
        assert door.state() is BreakerState.OPEN
        door.clock.advance(OPEN_SECONDS)
        assert (await door.house.ask(chat())).status == 200
        assert len(broken.received) == 11
        assert door.state() is BreakerState.CLOSED
        for _ in range(20):
            assert (await door.house.ask(chat())).status == 200
        assert len(broken.received) > 11


async def test_many_requests_at_once_make_one_trial(open_door: OpenDoor) -> None:
    release = asyncio.Event()

    async def slow(request: Received, wire: Wire) -> None:
        await release.wait()
        await answers(completion())(request, wire)

    async with EngineDouble(*[fail] * 10, slow) as engine:
        door = await Balanced.start(open_door, engine.port)
        for _ in range(10):
            await door.house.ask(chat())
        told = await door.house.ask(chat())
        assert (told.status, told.error["code"]) == (503, "no_ready_instance")
        assert told.header("retry-after") == "30"
        door.clock.advance(OPEN_SECONDS)
        asked = [asyncio.create_task(door.house.ask(chat())) for _ in range(20)]
        await until(lambda: sum(task.done() for task in asked) == 19)
        release.set()
        answered = await asyncio.gather(*asked)
        assert sorted(answer.status for answer in answered) == [200] + [503] * 19
        assert len(engine.received) == 11


async def test_a_trial_that_streams_lets_others_in_with_its_first_content(open_door: OpenDoor) -> None:
    async with EngineDouble(*[fail] * 10, streams(chunk("A"), then=Wire.stall), answers(completion())) as engine:
        door = await Balanced.start(open_door, engine.port)
        for _ in range(10):
            await door.house.ask(chat())
        door.clock.advance(OPEN_SECONDS)
        client = await door.house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await client.head()
        await client.chunk()
        assert (await door.house.ask(chat())).status == 200
        client.leave()
        await until(lambda: not door.balancer.loads())
        assert door.state() is BreakerState.CLOSED


async def test_a_refused_connection_costs_one_request_one_try(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as sound:
        door = await Balanced.start(open_door, free_port(), sound.port)
        for _ in range(30):
            assert (await door.house.ask(chat())).status == 200
        assert sum(s.attempts for s in await door.house.settled(30)) == 31
        assert door.state() is BreakerState.OPEN


async def test_the_only_engine_is_back_within_two_seconds_of_its_return(open_door: OpenDoor) -> None:
    engine = EngineDouble(answers(completion()))
    engine.port = free_port()
    door = await Balanced.start(open_door, engine.port)
    assert (await door.house.ask(chat())).status == 502
    for _ in range(100):
        assert (await door.house.ask(chat())).status == 503
        door.clock.advance(1.0)
        assert (await door.house.ask(chat())).status == 502
    async with engine:
        door.clock.advance(2.0)
        assert (await door.house.ask(chat())).status == 200
        assert door.state() is BreakerState.CLOSED


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 503])
async def test_what_the_client_does_and_a_full_engine_open_nothing(open_door: OpenDoor, status: int) -> None:
    async with EngineDouble(answers({"error": {"message": "no"}}, status=status)) as engine:
        door = await Balanced.start(open_door, engine.port)
        for _ in range(30):
            assert (await door.house.ask(chat())).status == status
        assert not door.balancer.breaker_states()
        assert len(engine.received) == 30


async def test_a_full_engine_is_passed_over_at_once(open_door: OpenDoor) -> None:
    full = answers({"error": {"message": "full"}}, status=429, headers=[("Retry-After", "7")])
    async with EngineDouble(full) as busy, EngineDouble(answers(completion())) as free:
        door = await Balanced.start(open_door, busy.port, free.port)
        for _ in range(10):
            assert (await door.house.ask(chat())).status == 200
        free.scripts = [full]
        told = await door.house.ask(chat())
        assert (told.status, told.header("retry-after")) == (429, "7")


async def test_what_one_engine_was_not_started_for_is_asked_of_another(open_door: OpenDoor) -> None:
    chats_only = answers({"detail": "Not Found"}, status=404)
    async with EngineDouble(chats_only) as first, EngineDouble(answers({"data": []})) as second:
        door = await Balanced.start(open_door, first.port, second.port)
        for _ in range(10):
            body = {"model": "alias", "input": "a"}
            assert (await door.house.ask(body, path="/v1/embeddings")).status == 200
        assert first.received
        assert not door.balancer.breaker_states()


async def test_an_outage_does_not_multiply_the_load(open_door: OpenDoor) -> None:
    async with EngineDouble(die) as one, EngineDouble(die) as two, EngineDouble(die) as three:
        door = await Balanced.start(open_door, one.port, two.port, three.port)
        for _ in range(200):
            assert (await door.house.ask(chat())).status in (502, 503)
        assert len(one.received) + len(two.received) + len(three.received) <= 3 * 10
        retried = sum(max(0, s.attempts - 1) for s in await door.house.settled(200))
        assert retried == door.balancer.counters.retries <= max(FLOOR, 200 * 0.2)


async def test_an_endpoint_that_is_deleted_during_an_attempt_is_not_the_next(open_door: OpenDoor) -> None:
    async def delete_all(_request: Received, wire: Wire) -> None:
        ids = [endpoint.instance_id for endpoint in door.snapshot.endpoints(MODEL)]
        door.snapshot.apply(ENDPOINTS, ids, [])
        wire.die()

    async with EngineDouble(delete_all) as one, EngineDouble(delete_all) as two:
        door = await Balanced.start(open_door, one.port, two.port)
        assert (await door.house.ask(chat())).status == 502
        assert len(one.received) + len(two.received) == 1
        assert not door.balancer.breaker_states()
        assert not door.balancer.loads()


async def test_connections_to_engines_are_used_again(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as one, EngineDouble(streams(*chat_stream("A"))) as two:
        for stream, engine in ((False, one), (True, two)):
            door = await Balanced.start(open_door, engine.port)
            for _ in range(25):
                asked = [asyncio.create_task(door.house.ask(chat(stream=stream))) for _ in range(8)]
                assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
            counters = door.house.upstream.counters
            assert counters.opened + counters.reused == 200
            assert counters.reused / 200 >= 0.96  # eight of them at once need eight
            assert engine.accepted == counters.opened


@pytest.mark.shows("R111")
async def test_the_reuse_of_connections_is_a_metric(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        door = await Balanced.start(open_door, engine.port)
        keeping = Housekeeping(door.balancer, door.house.upstream)
        before = told()
        client = await door.house.connect()
        for _ in range(300):
            await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
            assert (await client.answer()).status == 200
        keeping.look()
        after = told()
        opened, reused = (
            after.get(name, 0) - before.get(name, 0)
            for name in (
                'gatehouse_upstream_connections_total{how="opened"}',
                'gatehouse_upstream_connections_total{how="reused"}',
            )
        )
        assert opened + reused == 300
        assert reused / (opened + reused) >= 0.97


async def test_load_breakers_and_retries_are_metrics(open_door: OpenDoor) -> None:
    async with EngineDouble(stall_script) as engine:
        door = await Balanced.start(open_door, engine.port, free_port())
        stalled, refusing = door.snapshot.endpoints(MODEL)
        keeping = Housekeeping(door.balancer, door.house.upstream)
        clients = [await door.house.connect() for _ in range(3)]
        for client in clients:
            await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        await until(lambda: len(engine.received) == 3)
        keeping.look()
        metrics = told()
        assert metrics[f'gatehouse_endpoint_active_requests{{instance="{stalled.instance_id}"}}'] == 3
        assert metrics[f'gatehouse_endpoint_breaker{{instance="{refusing.instance_id}"}}'] == 2
        assert metrics['gatehouse_retries_total{made="yes"}'] >= 1
        for client in clients:
            client.leave()
        await until(lambda: door.house.door.in_flight == 0)
        keeping.look()
        assert told()[f'gatehouse_endpoint_active_requests{{instance="{stalled.instance_id}"}}'] == 0


async def test_a_client_may_shorten_its_deadline_and_nobody_is_blamed(open_door: OpenDoor) -> None:
    async with EngineDouble(stall_script) as engine:
        door = await Balanced.start(open_door, engine.port)
        for stream in (False, True) * 6:
            told = await door.house.ask(chat(stream=stream), headers=[("X-Gatehouse-Timeout-Ms", "50")])
            assert (told.status, told.error["code"]) == (504, "upstream_timeout")
        told_to_engine = [int(request.header("x-request-deadline-ms") or 0) for request in engine.received]
        assert 0 < max(told_to_engine) <= 50
        assert not door.balancer.breaker_states()
        assert {s.outcome for s in door.house.settlements} == {Outcome.FAILED}


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "9" * 13])
async def test_a_deadline_that_is_none_is_refused(open_door: OpenDoor, value: str) -> None:
    async with EngineDouble(answers(completion())) as engine:
        door = await Balanced.start(open_door, engine.port)
        told = await door.house.ask(chat(), headers=[("X-Gatehouse-Timeout-Ms", value)])
        assert (told.status, told.error["code"]) == (400, "invalid_request")


async def test_a_longer_deadline_and_anothers_header_change_nothing(open_door: OpenDoor) -> None:
    async with EngineDouble(stall_script) as engine:
        door = await Balanced.start(open_door, engine.port, deadlines=Deadlines(total_seconds=1.0))
        headers = [("X-Gatehouse-Timeout-Ms", "60000"), ("X-Stainless-Timeout", "0")]
        told = await door.house.ask(chat(), headers=headers)
        assert told.status == 504
        assert 200 < int(engine.received[0].header("x-request-deadline-ms") or 0) <= 1000


async def test_no_further_engine_is_tried_after_the_retries_deadline(open_door: OpenDoor) -> None:
    async with EngineDouble(stall_script) as hung, EngineDouble(stall_script) as other:
        deadlines = Deadlines(first_token_seconds=0.2, retry_seconds=0.1)
        door = await Balanced.start(open_door, hung.port, other.port, deadlines=deadlines)
        assert (await door.house.ask(chat(stream=True))).status == 504
        assert len(hung.received) + len(other.received) == 1


def told() -> dict[str, float]:
    """The metrics' samples by name and labels."""
    lines = render_metrics().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}

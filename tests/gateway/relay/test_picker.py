"""Endpoints by load, without those that were tried or just failed."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from core.clock import ManualClock
from gateway.relay.picker import EJECTION_SECONDS, Balancer
from gateway.relay.plan import Api, Endpoint
from gateway.relay.rows import ENDPOINTS, EndpointRow
from gateway.relay.snapshot import Snapshot

MODEL = uuid4()
NONE: frozenset[UUID] = frozenset()


class Pool:
    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.clock = ManualClock()
        self._numbers = self._cycle()
        self.balancer = Balancer(self.snapshot, clock=self.clock, random=lambda: next(self._numbers))

    def _cycle(self) -> Iterator[float]:
        while True:
            yield from (0.0, 0.3, 0.5, 0.7, 0.9)

    def add(self) -> Endpoint:
        endpoint = Endpoint(uuid4(), uuid4(), "vllm", "127.0.0.1", 1, "", "tiny")
        self.snapshot.apply(ENDPOINTS, [], [EndpointRow(endpoint.instance_id, MODEL, endpoint)])
        return endpoint


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_without_endpoints_there_is_none(pool: Pool) -> None:
    assert not pool.balancer.has_ready(MODEL)
    assert pool.balancer.picker(MODEL, Api.CHAT).pick(NONE) is None


def test_load_is_spread_evenly(pool: Pool) -> None:
    endpoints = [pool.add(), pool.add()]
    for _ in range(10):
        picker = pool.balancer.picker(MODEL, Api.CHAT)
        endpoint = picker.pick(NONE)
        assert endpoint is not None
        picker.started(endpoint)
    assert [pool.balancer.in_flight(e.instance_id) for e in endpoints] == [5, 5]
    for endpoint in endpoints * 5:
        pool.balancer.finished(endpoint, failed=False)
    assert [pool.balancer.in_flight(e.instance_id) for e in endpoints] == [0, 0]


def test_what_was_tried_is_not_picked_again(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    assert picker.pick(frozenset({one.instance_id})) == two
    assert picker.pick(frozenset({one.instance_id, two.instance_id})) is None


def test_one_that_failed_rests_a_moment(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    pool.balancer.started(one)
    pool.balancer.finished(one, failed=True)
    assert {pool.balancer.pick(MODEL, Api.CHAT, NONE) for _ in range(10)} == {two}
    pool.clock.advance(EJECTION_SECONDS + 0.1)
    assert {pool.balancer.pick(MODEL, Api.CHAT, NONE) for _ in range(10)} == {one, two}


def test_a_failed_one_is_better_than_none(pool: Pool) -> None:
    one = pool.add()
    pool.balancer.started(one)
    pool.balancer.finished(one, failed=True)
    assert pool.balancer.pick(MODEL, Api.CHAT, NONE) == one

"""Endpoints by load, without those that were tried or just failed."""

from collections import Counter
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import ManualClock
from gateway.policies.breaker import OPEN_SECONDS, AttemptOutcome, BreakerState
from gateway.relay.picker import Balancer, ModelPicker, Unroutable
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

    def add(
        self, tenant_id: UUID | None = None, *, cap: int | None = None, firm: bool = False, engine: str = "vllm"
    ) -> Endpoint:
        endpoint = Endpoint(
            uuid4(), uuid4(), engine, "127.0.0.1", 1, "", "tiny", tenant_id=tenant_id, cap=cap, cap_firm=firm
        )
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
        pool.balancer.finished(endpoint, AttemptOutcome.OK)
    assert [pool.balancer.in_flight(e.instance_id) for e in endpoints] == [0, 0]


def test_what_was_tried_is_not_picked_again(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    assert picker.pick(frozenset({one.instance_id})) == two
    assert picker.pick(frozenset({one.instance_id, two.instance_id})) is None


def fail(pool: Pool, endpoint: Endpoint, outcome: AttemptOutcome = AttemptOutcome.FAILED, *, times: int = 10) -> None:
    for _ in range(times):
        picker = pool.balancer.picker(MODEL, Api.CHAT)
        picker.started(endpoint)
        picker.finished(endpoint, outcome)


def picked(pool: Pool) -> set[Endpoint | None]:
    return {pool.balancer.pick(MODEL, Api.CHAT, NONE) for _ in range(10)}


def begin(pool: Pool) -> tuple[ModelPicker, Endpoint]:
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    endpoint = picker.pick(NONE)
    assert endpoint is not None
    picker.started(endpoint)
    return picker, endpoint


def test_one_that_keeps_failing_is_left_alone_and_comes_back_by_one_trial(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    fail(pool, one, times=9)
    assert picked(pool) == {one, two}
    fail(pool, one, times=1)
    assert picked(pool) == {two}
    assert pool.balancer.why_not(MODEL, Api.CHAT, NONE) == {one.instance_id: Unroutable.BREAKER_OPEN}
    pool.clock.advance(OPEN_SECONDS + 0.1)
    trial, endpoint = begin(pool)
    assert endpoint == one
    assert picked(pool) == {two}
    assert pool.balancer.why_not(MODEL, Api.CHAT, NONE) == {one.instance_id: Unroutable.ON_TRIAL}
    trial.finished(one, AttemptOutcome.OK)
    assert picked(pool) == {one, two}
    assert not pool.balancer.breaker_states()


def test_a_trial_is_passed_with_its_first_content(pool: Pool) -> None:
    one = pool.add()
    fail(pool, one)
    pool.clock.advance(OPEN_SECONDS + 0.1)
    trial, _ = begin(pool)
    assert picked(pool) == {None}
    trial.answered()
    assert picked(pool) == {one}
    trial.finished(one, AttemptOutcome.FAILED)  # as any other failure now
    assert picked(pool) == {one}
    assert pool.balancer.in_flight(one.instance_id) == 0


def test_without_another_endpoint_the_answer_says_when_to_come_again(pool: Pool) -> None:
    one = pool.add()
    fail(pool, one)
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    assert picker.pick(NONE) is None
    assert picker.retry_after_seconds() == pytest.approx(OPEN_SECONDS)
    pool.clock.advance(OPEN_SECONDS - 0.2)
    assert picker.retry_after_seconds() == 1.0


def test_an_endpoint_that_refuses_connections_is_left_at_once(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    fail(pool, one, AttemptOutcome.REFUSED_CONNECTION, times=1)
    assert picked(pool) == {two}
    pool.clock.advance(2.1)
    assert picked(pool) == {one}  # its trial
    fail(pool, one, AttemptOutcome.REFUSED_CONNECTION, times=1)
    pool.clock.advance(2.1)
    assert picked(pool) == {two}


def test_the_only_endpoint_comes_back_within_two_seconds_however_long_it_was_away(pool: Pool) -> None:
    one = pool.add()
    for _ in range(100):
        fail(pool, one, AttemptOutcome.REFUSED_CONNECTION, times=1)
        assert pool.balancer.pick(MODEL, Api.CHAT, NONE) is None
        pool.clock.advance(1.1)
        assert pool.balancer.pick(MODEL, Api.CHAT, NONE) == one


def test_one_is_lonely_while_no_other_takes_its_tenants_requests_or_all_that_it_can_be_asked(pool: Pool) -> None:
    tenant = uuid4()
    one, own = pool.add(), pool.add(tenant)
    assert pool.balancer.lonely() == frozenset()  # both are well
    fail(pool, own)
    assert pool.balancer.lonely() == frozenset()
    fail(pool, one)
    assert pool.balancer.lonely() == {one.instance_id, own.instance_id}
    pool.add(tenant)
    assert pool.balancer.lonely() == {one.instance_id}
    pool.add(engine="kserve")  # which can be asked nothing that this one can
    assert pool.balancer.lonely() == {one.instance_id}
    pool.add(engine="tgi")  # which can be asked most: where it is, this one's trial waits as long as any
    assert pool.balancer.lonely() == frozenset()


def test_back_pressure_and_clients_faults_open_nothing(pool: Pool) -> None:
    one = pool.add()
    fail(pool, one, AttemptOutcome.BACK_PRESSURE, times=50)
    fail(pool, one, AttemptOutcome.NEUTRAL, times=50)
    assert picked(pool) == {one}
    assert not pool.balancer.breaker_states()


def test_a_deleted_endpoint_is_never_picked_and_nothing_of_it_is_kept(pool: Pool) -> None:
    one, two = pool.add(), pool.add()
    fail(pool, one)
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    picker.started(two)
    pool.snapshot.apply(ENDPOINTS, [one.instance_id, two.instance_id], [])
    assert picker.pick(NONE) is None
    picker.finished(two, AttemptOutcome.FAILED)
    pool.balancer.sweep()
    assert not pool.balancer.breaker_states()
    assert not pool.balancer.loads()


def test_an_attempt_that_nobody_ended_is_found_by_the_sweep(pool: Pool) -> None:
    one = pool.add()
    fail(pool, one)
    pool.clock.advance(OPEN_SECONDS)
    picker, _ = begin(pool)
    assert pool.balancer.in_flight(one.instance_id) == 1
    del picker
    pool.balancer.sweep()
    assert pool.balancer.in_flight(one.instance_id) == 0
    assert pool.balancer.counters.lost_counts == 1
    assert picked(pool) == {one}  # the trial that was lost does not keep it away


@pytest.mark.shows("R140")
@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "forget", "sweep", "wait"]), st.integers(0, 99))))
def test_active_requests_are_counted_exactly(steps: list[tuple[str, int]]) -> None:
    pool = Pool()
    for _ in range(3):
        pool.add()
    live: list[tuple[ModelPicker, Endpoint]] = []
    for step, number in steps:
        if step == "begin":
            picker = pool.balancer.picker(MODEL, Api.CHAT)
            endpoint = picker.pick(NONE)
            if endpoint is not None:
                picker.started(endpoint)
                live.append((picker, endpoint))
            del picker
        elif step == "wait":
            pool.clock.advance(number)
        elif step == "sweep":
            pool.balancer.sweep()
        elif live:
            picker, endpoint = live.pop(number % len(live))
            if step == "end":
                picker.finished(endpoint, list(AttemptOutcome)[number % 5])
            del picker
    pool.balancer.sweep()
    counted = Counter(endpoint.instance_id for _, endpoint in live)
    assert dict(pool.balancer.loads()) == counted
    on_trial = [state for state in pool.balancer.breaker_states().values() if state is BreakerState.HALF_OPEN]
    assert len(on_trial) <= len(live)


def test_retries_are_a_share_of_the_requests(pool: Pool) -> None:
    for _ in range(1000):
        pool.balancer.picker(MODEL, Api.CHAT)
    granted = sum(pool.balancer.spend_retry() for _ in range(1000))
    assert granted == pool.balancer.counters.retries == 200
    assert pool.balancer.counters.retries_denied == 800


def test_a_tenant_is_sent_to_its_own_and_to_the_others_where_its_own_fail(pool: Pool) -> None:
    tenant, other = uuid4(), uuid4()
    shared, own = pool.add(), pool.add(tenant)
    for _ in range(5):
        assert pool.balancer.pick(MODEL, Api.CHAT, NONE, tenant) == own
        assert pool.balancer.pick(MODEL, Api.CHAT, NONE, other) == shared
        assert pool.balancer.pick(MODEL, Api.CHAT, NONE) == shared
    assert pool.balancer.pick(MODEL, Api.CHAT, frozenset({own.instance_id}), tenant) == shared
    fail(pool, own)
    assert pool.balancer.pick(MODEL, Api.CHAT, NONE, tenant) == shared
    assert pool.balancer.why_not(MODEL, Api.CHAT, NONE, other) == {}


def test_where_only_anothers_is_ready_there_is_none(pool: Pool) -> None:
    tenant = uuid4()
    pool.add(tenant)
    assert not pool.balancer.has_ready(MODEL, uuid4())
    assert not pool.balancer.can(MODEL, Api.CHAT, uuid4())
    assert pool.balancer.can(MODEL, Api.CHAT, tenant)
    assert pool.balancer.picker(MODEL, Api.CHAT, uuid4()).pick(NONE) is None


def one_more(pool: Pool) -> Endpoint | None:
    """One more request in flight."""
    picker = pool.balancer.picker(MODEL, Api.CHAT)
    endpoint = picker.pick(NONE)
    if endpoint is not None:
        picker.started(endpoint)
        picker._in_use = None  # it stays in flight when the picker goes
    return endpoint


@pytest.mark.shows("R80")
def test_endpoints_below_their_cap_are_preferred_and_a_cap_that_is_not_firm_refuses_nobody(pool: Pool) -> None:
    capped, free = pool.add(cap=2), pool.add()
    loads = Counter(endpoint.instance_id for endpoint in (one_more(pool) for _ in range(12)) if endpoint)
    assert loads == {capped.instance_id: 2, free.instance_id: 10}
    pool.snapshot.apply(ENDPOINTS, [free.instance_id], [])
    assert one_more(pool) == capped


@pytest.mark.shows("R80", "R132")
def test_a_firm_cap_is_never_passed_and_said_to_be_the_reason(pool: Pool) -> None:
    endpoint = pool.add(cap=2, firm=True)
    assert [one_more(pool), one_more(pool), one_more(pool)] == [endpoint, endpoint, None]
    assert pool.balancer.picker(MODEL, Api.CHAT).why_not(NONE) == {endpoint.instance_id: Unroutable.FULL}
    assert pool.balancer.retry_after_seconds(MODEL, Api.CHAT) >= 1
    pool.balancer.finished(endpoint, AttemptOutcome.OK)
    assert one_more(pool) == endpoint


def test_no_new_request_goes_to_an_endpoint_whose_cap_is_nought_while_another_has_room(pool: Pool) -> None:
    full, other = pool.add(cap=0), pool.add(cap=12)
    assert {one_more(pool) for _ in range(12)} == {other}
    assert full in {one_more(pool) for _ in range(12)}


def test_a_full_one_whose_trial_is_due_keeps_no_request_from_others(pool: Pool) -> None:
    full = pool.add(cap=1, firm=True)
    assert one_more(pool) == full
    fail(pool, full)
    assert pool.balancer.in_flight(full.instance_id) == 1
    pool.clock.advance(OPEN_SECONDS + 0.1)
    other = pool.add()
    assert picked(pool) == {other}
    pool.balancer.finished(full, AttemptOutcome.NEUTRAL)
    assert picked(pool) == {full}


def test_processes_share_a_cap() -> None:
    pool = Pool()
    pool.balancer = Balancer(pool.snapshot, clock=pool.clock, random=lambda: 0.0, processes=3)
    endpoint = pool.add(cap=7, firm=True)  # three times two, not three times three
    assert [one_more(pool) for _ in range(3)] == [endpoint, endpoint, None]


def test_a_process_is_left_one_request_of_a_firm_cap_and_none_of_nought() -> None:
    pool = Pool()
    pool.balancer = Balancer(pool.snapshot, clock=pool.clock, random=lambda: 0.0, processes=3)
    endpoint = pool.add(cap=2, firm=True)
    assert [one_more(pool) for _ in range(2)] == [endpoint, None]
    pool = Pool()
    pool.add(cap=0, firm=True)
    assert one_more(pool) is None


def test_a_cap_that_is_not_firm_is_shared_rounded_up() -> None:
    pool = Pool()
    pool.balancer = Balancer(pool.snapshot, clock=pool.clock, random=lambda: 0.0, processes=3)
    capped, other = pool.add(cap=4), pool.add(cap=300)
    seen = [one_more(pool) for _ in range(40)]
    assert (seen.count(capped), seen.count(other)) == (2, 38)

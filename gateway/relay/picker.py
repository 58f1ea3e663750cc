"""Chooses endpoints by what this process has in flight on them, and leaves alone those whose breaker is open.

An endpoint of which only good is known costs nothing here: breakers are kept of those that failed lately.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from core.clock import Clock
from gateway.policies.breaker import (
    AttemptOutcome,
    Breaker,
    BreakerState,
    admits,
    after_attempt,
    begin_trial,
    trial_at,
)
from gateway.policies.pick import pick_less_loaded
from gateway.policies.retry import RetryBudget
from gateway.relay.plan import Api, Endpoint
from gateway.relay.rooms import find_room
from gateway.relay.snapshot import Snapshot

_SHORTEST_RETRY_AFTER_SECONDS: Final = 1.0
_IDLE: Final = [0]
RETRY_SHARE: Final = 0.2


class Unroutable(StrEnum):
    """Why an endpoint of the model is not sent a request."""

    TRIED = "tried"  # by an earlier attempt of this request
    UNABLE = "unable"  # its engine cannot be asked that
    BREAKER_OPEN = "breaker_open"
    ON_TRIAL = "on_trial"  # one request is finding out whether it is well again
    FULL = "full"  # it has as many requests as its memory allows


@dataclass(slots=True)
class BalancerCounters:
    """Since the start; for metrics."""

    retries: int = 0
    retries_denied: int = 0  # by the process's budget
    opened_refused: int = 0  # breakers, because a connection was refused
    opened_failed: int = 0  # breakers, because half of the window, or a trial, failed
    lost_counts: int = 0  # attempts that nobody ended: found by the finaliser, which is the backstop of the count


class Balancer:
    """The endpoints as this process knows them: load, breakers, and the budget of retries.

    Only touched on the event loop. `random`: a number in [0, 1). `retry_share`: most retries, per request.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        clock: Clock,
        random: Callable[[], float],
        retry_share: float = RETRY_SHARE,
        processes: int = 1,
    ) -> None:
        self.counters = BalancerCounters()
        self._snapshot = snapshot
        self._clock = clock
        self._random = random
        self._in_flight: dict[UUID, list[int]] = {}  # a list of one: it is looked up once and changed in place
        self._breakers: dict[UUID, Breaker] = {}
        self._requests = 0
        self._budget = RetryBudget(retry_share)
        self._processes = max(1, processes)  # that share the endpoints' caps
        self._dropped: deque[tuple[Endpoint, bool]] = deque()

    def picker(self, model_id: UUID, api: Api, tenant_id: UUID | None = None) -> "ModelPicker":
        """A picker among the endpoints of one model that can be asked that by the tenant; one for each request."""
        self._requests += 1
        return ModelPicker(self, model_id, api, tenant_id)

    def has_ready(self, model_id: UUID, tenant_id: UUID | None = None) -> bool:
        return bool(self._snapshot.endpoints(model_id, tenant_id))

    def can(self, model_id: UUID, api: Api, tenant_id: UUID | None = None) -> bool:
        """Whether any of the model's endpoints that take the tenant's requests can be asked that."""
        return any(_can(endpoint, api) for endpoint in self._snapshot.endpoints(model_id, tenant_id))

    def in_flight(self, instance_id: UUID) -> int:
        """Requests of this process on that instance now."""
        return self._in_flight.get(instance_id, _IDLE)[0]

    def loads(self) -> Mapping[UUID, int]:
        """Requests in flight by instance, where there are any."""
        return {instance_id: load[0] for instance_id, load in self._in_flight.items() if load[0]}

    def breaker(self, instance_id: UUID) -> Breaker:
        """What is known of that instance."""
        return self._breakers.get(instance_id) or Breaker()

    def breakers(self) -> Mapping[UUID, Breaker]:
        """What is known of the instances that failed lately."""
        return dict(self._breakers)

    def breaker_states(self) -> Mapping[UUID, BreakerState]:
        """Of the instances that failed lately; all others are closed."""
        return {instance_id: breaker.state for instance_id, breaker in self._breakers.items()}

    def lonely(self) -> frozenset[UUID]:
        """Instances left alone of whose requests no other can be sent any: `pick` tries them sooner.

        However full the others are, which is so for a moment.
        """
        found = []
        well: dict[tuple[UUID, UUID | None], frozenset[Api]] = {}  # what the others beside one can be asked
        for instance_id, breaker in self._breakers.items():
            row = self._snapshot.endpoint_row(instance_id)
            if breaker.state is BreakerState.CLOSED or row is None:
                continue
            beside = (row.model_id, row.endpoint.tenant_id)
            if beside not in well:
                well[beside] = self._well(*beside)
            if not _apis(row.endpoint.engine) & well[beside]:
                found.append(instance_id)
        return frozenset(found)

    # For one request

    def pick(
        self, model_id: UUID, api: Api, exclude: frozenset[UUID], tenant_id: UUID | None = None
    ) -> Endpoint | None:
        """One of those that take the tenant's requests: one of its own, else one of those that take everybody's."""
        candidates = [e for e in self._snapshot.endpoints(model_id, tenant_id) if _can(e, api)]
        if any(e.cap_firm for e in candidates):
            # Before breakers: one whose trial is due would keep requests from all others, and get none itself.
            candidates = [e for e in candidates if not (e.cap_firm and self._is_full(e))]
        if exclude:
            candidates = [e for e in candidates if e.instance_id not in exclude]
        if self._breakers:
            candidates = self._routable(candidates)
        if any(e.cap is not None for e in candidates):
            candidates = [e for e in candidates if not self._is_full(e)] or candidates
        if tenant_id is not None and len(candidates) > 1:
            candidates = [e for e in candidates if e.tenant_id is not None] or candidates
        if not candidates:
            return None
        if len(candidates) == 1:
            return candidates[0]
        loads = [self._in_flight.get(e.instance_id, _IDLE)[0] for e in candidates]
        return candidates[pick_less_loaded(loads, first=self._random(), second=self._random())]

    def why_not(
        self, model_id: UUID, api: Api, exclude: frozenset[UUID], tenant_id: UUID | None = None
    ) -> dict[UUID, Unroutable]:
        """Why each endpoint that `pick` would pass over is passed over; for logs."""
        now = self._clock.monotonic()
        reasons: dict[UUID, Unroutable] = {}
        for endpoint in self._snapshot.endpoints(model_id, tenant_id):
            breaker = self._breakers.get(endpoint.instance_id)
            if endpoint.instance_id in exclude:
                reasons[endpoint.instance_id] = Unroutable.TRIED
            elif not _can(endpoint, api):
                reasons[endpoint.instance_id] = Unroutable.UNABLE
            elif breaker is not None and breaker.state is BreakerState.HALF_OPEN:
                reasons[endpoint.instance_id] = Unroutable.ON_TRIAL
            elif breaker is not None and not admits(breaker, now=now):
                reasons[endpoint.instance_id] = Unroutable.BREAKER_OPEN
            elif endpoint.cap_firm and self._is_full(endpoint):
                reasons[endpoint.instance_id] = Unroutable.FULL
        return reasons

    def retry_after_seconds(self, model_id: UUID, api: Api, tenant_id: UUID | None = None) -> float:
        """How long until one of the model's endpoints may be tried again; at least a second."""
        waits = [
            trial_at(breaker, lonely=True) - self._clock.monotonic()
            for e in self._snapshot.endpoints(model_id, tenant_id)
            if _can(e, api)
            and (breaker := self._breakers.get(e.instance_id)) is not None
            and breaker.state is BreakerState.OPEN
        ]
        return max(_SHORTEST_RETRY_AFTER_SECONDS, min(waits, default=0.0))

    def started(self, endpoint: Endpoint) -> bool:
        """An attempt begins there. Returns whether it is the trial of an open breaker."""
        instance_id = endpoint.instance_id
        load = self._in_flight.get(instance_id)
        if load is None:
            self._in_flight[instance_id] = [1]
        else:
            load[0] += 1
        if self._breakers:
            breaker = self._breakers.get(instance_id)
            if breaker is not None and breaker.state is BreakerState.OPEN:
                self._breakers[instance_id] = begin_trial(breaker)
                return True
        return False

    def answered(self, endpoint: Endpoint) -> None:
        """The trial there has its first content: a good sign that need not wait for the end of a long stream."""
        self._judge(endpoint.instance_id, AttemptOutcome.OK, trial=True)

    def finished(self, endpoint: Endpoint, outcome: AttemptOutcome, *, trial: bool = False) -> None:
        instance_id = endpoint.instance_id
        load = self._in_flight.get(instance_id)
        if load is not None and load[0]:
            load[0] -= 1
        if outcome is not AttemptOutcome.OK or self._breakers:
            self._judge(instance_id, outcome, trial=trial)

    def spend_retry(self) -> bool:
        """Whether the process's budget has room for one more attempt; it is taken when it has."""
        if self._budget.spend(now=self._clock.monotonic(), requests=self._requests):
            self.counters.retries += 1
            return True
        self.counters.retries_denied += 1
        return False

    def _judge(self, instance_id: UUID, outcome: AttemptOutcome, *, trial: bool) -> None:
        before = self._breakers.get(instance_id)
        if before is None:
            if outcome is not AttemptOutcome.FAILED and outcome is not AttemptOutcome.REFUSED_CONNECTION:
                return
            if not self._snapshot.has_endpoint(instance_id):
                return  # deleted meanwhile: nothing is remembered of it
        breaker = after_attempt(before or Breaker(), outcome, now=self._clock.monotonic(), trial=trial)
        if breaker is not before and breaker.state is BreakerState.OPEN and breaker.open_seconds:
            if breaker.refusals:
                self.counters.opened_refused += 1
            else:
                self.counters.opened_failed += 1
        if breaker.unblemished:
            self._breakers.pop(instance_id, None)
        else:
            self._breakers[instance_id] = breaker

    def _well(self, model_id: UUID, tenant_id: UUID | None) -> frozenset[Api]:
        """What those endpoints can be asked whose breaker is closed."""
        breakers = self._breakers
        engines = {
            e.engine
            for e in self._snapshot.endpoints(model_id, tenant_id)
            if (breaker := breakers.get(e.instance_id)) is None or breaker.state is BreakerState.CLOSED
        }
        return frozenset().union(*map(_apis, engines))

    def _routable(self, candidates: list[Endpoint]) -> list[Endpoint]:
        now, breakers = self._clock.monotonic(), self._breakers
        due = []
        kept = []
        for endpoint in candidates:
            breaker = breakers.get(endpoint.instance_id)
            if breaker is None or breaker.state is BreakerState.CLOSED:
                kept.append(endpoint)
            elif admits(breaker, now=now):
                due.append(endpoint)
        if due:
            return due[:1]  # or it would be tried only by chance, and late
        if kept:
            return kept
        return [e for e in candidates if admits(breakers[e.instance_id], now=now, lonely=True)][:1]

    def _is_full(self, endpoint: Endpoint) -> bool:
        """Whether this process has its share of the endpoint's cap in flight there."""
        if endpoint.cap is None:
            return False
        # A firm cap is rounded down, or all together would pass it; every process has one at least, or it would refuse
        # for ever. Where that is more than the cap, there are more processes than requests allowed.
        share = endpoint.cap // self._processes if endpoint.cap_firm else -(-endpoint.cap // self._processes)
        share = max(share, min(endpoint.cap, 1))
        return self._in_flight.get(endpoint.instance_id, _IDLE)[0] >= share

    # Backstops

    def drop(self, endpoint: Endpoint, *, trial: bool) -> None:
        """An attempt there is gone without having been ended; may be called on any thread."""
        self._dropped.append((endpoint, trial))

    def sweep(self) -> None:
        """Count what nobody ended, and forget endpoints that are no longer there; about once a second."""
        while self._dropped:
            endpoint, trial = self._dropped.popleft()
            self.counters.lost_counts += 1
            self.finished(endpoint, AttemptOutcome.NEUTRAL, trial=trial)
        for instance_id in [i for i, load in self._in_flight.items() if not load[0]]:
            del self._in_flight[instance_id]
        for instance_id in [i for i in self._breakers if not self._snapshot.has_endpoint(i)]:
            del self._breakers[instance_id]
        self._budget.observe(now=self._clock.monotonic(), requests=self._requests)


def _can(endpoint: Endpoint, api: Api) -> bool:
    room = find_room(endpoint.engine)
    return room is not None and api in room.capabilities


def _apis(engine: str) -> frozenset[Api]:
    room = find_room(engine)
    return frozenset() if room is None else frozenset(api for api in Api if api in room.capabilities)


class ModelPicker:
    """The balancer as one request sees it: it has at most one attempt in flight."""

    __slots__ = ("_api", "_balancer", "_in_use", "_model_id", "_tenant_id", "_trial")

    def __init__(self, balancer: Balancer, model_id: UUID, api: Api, tenant_id: UUID | None) -> None:
        self._tenant_id = tenant_id
        self._balancer = balancer
        self._model_id = model_id
        self._api = api
        self._in_use: Endpoint | None = None
        self._trial = False

    def pick(self, exclude: frozenset[UUID]) -> Endpoint | None:
        return self._balancer.pick(self._model_id, self._api, exclude, self._tenant_id)

    def why_not(self, exclude: frozenset[UUID]) -> dict[UUID, Unroutable]:
        return self._balancer.why_not(self._model_id, self._api, exclude, self._tenant_id)

    def retry_after_seconds(self) -> float:
        return self._balancer.retry_after_seconds(self._model_id, self._api, self._tenant_id)

    def spend_retry(self) -> bool:
        return self._balancer.spend_retry()

    def started(self, endpoint: Endpoint) -> None:
        self._in_use = endpoint
        self._trial = self._balancer.started(endpoint)

    def answered(self) -> None:
        if self._trial and self._in_use is not None:
            self._balancer.answered(self._in_use)
            self._trial = False

    def finished(self, endpoint: Endpoint, outcome: AttemptOutcome) -> None:
        self._in_use = None
        self._balancer.finished(endpoint, outcome, trial=self._trial)

    def __del__(self) -> None:
        # The count of active requests must be exact; whoever forgets to end an attempt is corrected here.
        if self._in_use is not None:
            self._balancer.drop(self._in_use, trial=self._trial)

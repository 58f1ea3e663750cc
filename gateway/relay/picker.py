"""Chooses endpoints by what this process has in flight on them, and avoids one that just failed."""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from core.clock import Clock
from gateway.policies.pick import pick_less_loaded
from gateway.relay.plan import Api, Endpoint, EndpointPicker
from gateway.relay.rooms import find_room
from gateway.relay.snapshot import Snapshot

EJECTION_SECONDS: Final = 2.0


class Balancer:
    """The load of all endpoints as this process knows it. `random`: a number in [0, 1)."""

    def __init__(self, snapshot: Snapshot, *, clock: Clock, random: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._random = random
        self._in_flight: dict[UUID, int] = {}
        self._ejected_until: dict[UUID, float] = {}

    def picker(self, model_id: UUID, api: Api) -> EndpointPicker:
        """A picker among the endpoints of one model that can be asked that."""
        return _ModelPicker(self, model_id, api)

    def has_ready(self, model_id: UUID) -> bool:
        return bool(self._snapshot.endpoints(model_id))

    def can(self, model_id: UUID, api: Api) -> bool:
        """Whether any of the model's endpoints can be asked that."""
        return any(_can(endpoint, api) for endpoint in self._snapshot.endpoints(model_id))

    def in_flight(self, instance_id: UUID) -> int:
        """Requests of this process on that instance now."""
        return self._in_flight.get(instance_id, 0)

    def pick(self, model_id: UUID, api: Api, exclude: frozenset[UUID]) -> Endpoint | None:
        candidates = tuple(
            [e for e in self._snapshot.endpoints(model_id) if e.instance_id not in exclude and _can(e, api)]
        )
        if self._ejected_until:
            candidates = self._without_ejected(candidates)
        if not candidates:
            return None
        if len(candidates) == 1:
            return candidates[0]
        loads = [self._in_flight.get(e.instance_id, 0) for e in candidates]
        return candidates[pick_less_loaded(loads, first=self._random(), second=self._random())]

    def started(self, endpoint: Endpoint) -> None:
        self._in_flight[endpoint.instance_id] = self._in_flight.get(endpoint.instance_id, 0) + 1

    def finished(self, endpoint: Endpoint, *, failed: bool) -> None:
        left = self._in_flight.get(endpoint.instance_id, 0) - 1
        if left > 0:
            self._in_flight[endpoint.instance_id] = left
        else:
            self._in_flight.pop(endpoint.instance_id, None)
        if failed:
            self._ejected_until[endpoint.instance_id] = self._clock.monotonic() + EJECTION_SECONDS

    def _without_ejected(self, candidates: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        now = self._clock.monotonic()
        self._ejected_until = {i: until for i, until in self._ejected_until.items() if until > now}
        kept = tuple(e for e in candidates if e.instance_id not in self._ejected_until)
        return kept or candidates  # one that failed is still better than none


def _can(endpoint: Endpoint, api: Api) -> bool:
    room = find_room(endpoint.engine)
    return room is not None and api in room.capabilities


class _ModelPicker:
    __slots__ = ("_api", "_balancer", "_model_id")

    def __init__(self, balancer: Balancer, model_id: UUID, api: Api) -> None:
        self._balancer = balancer
        self._model_id = model_id
        self._api = api

    def pick(self, exclude: frozenset[UUID]) -> Endpoint | None:
        return self._balancer.pick(self._model_id, self._api, exclude)

    def started(self, endpoint: Endpoint) -> None:
        self._balancer.started(endpoint)

    def finished(self, endpoint: Endpoint, *, failed: bool) -> None:
        self._balancer.finished(endpoint, failed=failed)

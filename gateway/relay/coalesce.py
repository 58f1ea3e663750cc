"""Identical requests of one tenant that are under way at the same time share one exchange with an engine.

Only where it is switched on, and where the answer would be the same: deterministic requests, or those whose client says
so. Each is authenticated, permitted, counted and written to the ledger by itself; only the engine is asked once.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final

from core.clock import Clock
from gateway.relay.carrier import Carrier
from gateway.relay.deadlines import Deadlines
from gateway.relay.exchange import Exchange
from gateway.relay.flight import Flight, Member
from gateway.relay.plan import Api, Headers, Ready
from gateway.relay.routes import ENGINE_PATHS

HEADER: Final = b"x-gatehouse-coalesce"
"""`on`: this request may share an answer that is no certain one; `off`, and anything else: it never shares."""

_MOST_BODY_BYTES: Final = 4 * 1024 * 1024  # bodies are compared, and kept as long as anyone waits
_CERTAIN: Final = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.TOKENIZE})

_Key = tuple[object, ...]


class Coalesce(StrEnum):
    """The values of GATEHOUSE_COALESCE."""

    OFF = "off"
    DETERMINISTIC = "deterministic"


class Coalescer:
    """`exchange` makes what carries one request alone; `on_join` is called for each that the engine is not asked."""

    def __init__(
        self,
        exchange: Callable[[Ready], Exchange],
        clock: Clock,
        deadlines: Deadlines,
        *,
        on_join: Callable[[Api], None] = lambda api: None,
    ) -> None:
        self._exchange = exchange
        self._clock = clock
        self._deadlines = deadlines
        self._on_join = on_join
        self._flights: dict[_Key, Flight] = {}

    @property
    def open_flights(self) -> int:
        """Exchanges that a further request may join."""
        return len(self._flights)

    def carry(self, ready: Ready) -> Carrier:
        """What brings the answer: an exchange of its own, or a share. On any thread."""
        if may_share(ready):
            return Member(ready, self._join, self._clock, self._deadlines)
        return self._exchange(ready)

    def _join(self, member: Member) -> Flight:
        """On the loop, when the answer is waited for."""
        ready = member.ready
        key = _key(ready)
        flight = self._flights.get(key)
        if flight is None:
            closed = partial(self._flights.pop, key, None)
            flight = self._flights[key] = Flight(ready, self._exchange, closed)
        else:
            self._on_join(ready.request.api)
        flight.add(member)
        return flight


def may_share(ready: Ready) -> bool:
    """Whether the request's answer may be another's too: asked in the engine's own words, and certain or opted in."""
    request, work = ready.request, ready.work
    if request.api not in ENGINE_PATHS or work.dialect is not None or len(work.body) > _MOST_BODY_BYTES:
        return False
    wish = _wish(request.headers)
    return (request.api in _CERTAIN or _is_greedy(ready)) if wish is None else wish


def _key(ready: Ready) -> _Key:
    """What two requests have in common that are the same. A realtime one does not wait behind a background one."""
    request = ready.request
    work = ready.work
    tenant_id, kind = ready.principal.tenant_id, request.traffic_class
    return tenant_id, ready.model, request.api, request.path, kind, work.most_tokens, work.body


def _wish(headers: Headers) -> bool | None:
    """What the client says; None where it says nothing."""
    for name, value in headers:
        if name == HEADER:
            return value.strip().lower() == b"on"
    return None


def _is_greedy(ready: Ready) -> bool:
    """The temperature is given, and is zero: engines differ in what they take where none is."""
    span = ready.work.parsed.spans.get("temperature")
    if span is None:
        return False
    try:
        return float(ready.work.body[span[2] : span[3]]) == 0
    except ValueError:
        return False

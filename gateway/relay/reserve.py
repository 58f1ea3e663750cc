"""Reserves what a request can use at most under the limits that take it in, before it is forwarded.

What is known of a principal and a model (their limits, and what of a request they count) is worked out once for each
version of the snapshot: far from its limits, a request costs a few look-ups and no wait.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from core.errors import QuotaExceeded, RateLimited, StateStoreUnavailable
from gateway.policies.bounds import Context, Size, TokenBound, bound_tokens, recounted
from gateway.relay.limiting.base import NOTHING, Charge, Reservation
from gateway.relay.limiting.key_limits import key_limit
from gateway.relay.measure import measure
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.rooms import find_room
from gateway.relay.rows import LimitRow, ModelRow, PriceRow
from gateway.relay.snapshot import Snapshot
from tenants.policies.pricing import bound_micros
from tenants.principal import Principal

DEFAULT_MAX_TOKENS: Final = 4096
TEMPLATE_TOKENS: Final = 256

_CALLS: Final = frozenset({"requests", "concurrency"})
_TOKENS: Final = frozenset({"tokens", "input_tokens", "output_tokens"})
_MONEY: Final = "money"
_NO_STORE_RETRY_SECONDS: Final = 5.0
_ONE: Final = Charge()
_CAPACITY: Final = 20_000
_MOST_BYTES_PER_TOKEN: Final = 8  # of a text; more is seldom enough to be passed over
_MARKER_TOKENS: Final = 8  # with which tokenizers begin and end a text that is in no template


class TokenCounter(Protocol):
    """Counts a prompt with the tokenizer of an engine that serves the model."""

    async def count(
        self, request: SlimRequest, work: Work, model_id: UUID, tenant_id: UUID | None = None
    ) -> int | None:
        """Tokens of the prompt; None where no engine can say, or none says in time."""


class Reserves(Protocol):
    """What is asked of a Limiter here."""

    def reserve_now(self, limits: Sequence[LimitRow], bound: Charge) -> Reservation | None:
        """See Limiter."""

    async def reserve(self, limits: Sequence[LimitRow], bound: Charge) -> Reservation:
        """See Limiter."""


class Hold(NamedTuple):
    """What a request holds until it is settled; rides in its ticket."""

    reservation: Reservation
    bound: Charge
    counts_tokens: bool  # or money: what a lost request is held to have used has to be known
    counts_money: bool
    prices: Sequence[PriceRow] | None = None
    """By which its money was bound, and by which it is charged, whatever they are by then; None: by those in effect."""
    counting_seconds: float | None = None  # that an engine took to count the prompt's tokens, where one was asked

    def price(self, version_id: UUID | None) -> PriceRow | None:
        """Of `prices`, the version's own before the model's."""
        general = None
        for row in self.prices or ():
            if row.version_id is None:
                general = row
            elif row.version_id == version_id:
                return row
        return general


class _Bounded(NamedTuple):
    """The work as it may be done, and how much it can use at most."""

    work: Work
    charge: Charge
    prices: Sequence[PriceRow] | None
    counting_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of a principal with a model. The tuples are the same objects for as long as nothing changes."""

    principal: Principal
    model: ModelRow
    limits: tuple[LimitRow, ...]
    calls: tuple[LimitRow, ...]  # those that count requests
    amounts: tuple[LimitRow, ...]  # those that count tokens or money
    counts_money: bool
    context: Context


class Both:
    """Two reservations of one request, which are settled as one."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Reservation, second: Reservation) -> None:
        self._first = first
        self._second = second

    def settle(self, used: Charge | None, sequence: int) -> None:
        try:
            self._first.settle(used, sequence)
        finally:
            self._second.settle(used, sequence)

    def within(self, moment: float) -> float:
        return self._second.within(self._first.within(moment))

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*self._first.headers(), *self._second.headers()]


class Reserver:
    """`limiter` is None where no Valkey is configured. `now`: seconds since the epoch.

    `default_max_tokens`: the end of an answer whose client gives none. `template_tokens`: what templates add to any
    prompt, at most.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        limiter: Reserves | None,
        *,
        now: Callable[[], float],
        counter: TokenCounter | None = None,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        template_tokens: int = TEMPLATE_TOKENS,
    ) -> None:
        self._snapshot = snapshot
        self._limiter = limiter
        self._now = now
        self._counter = counter
        self._default_max_tokens = default_max_tokens
        self._template_tokens = template_tokens
        self._terms: dict[tuple[int, str], tuple[Principal, Terms | None]] = {}
        self._before: dict[tuple[UUID, str], Terms] = {}  # of the version before, to keep what has not changed
        self._version = -1

    def terms(self, principal: Principal, model: ModelRow) -> Terms | None:
        """What limits the principal with the model; None where nothing does."""
        snapshot = self._snapshot
        if self._version != snapshot.version:
            self._before = {(t.principal.pk, name): t for (_, name), (_, t) in self._terms.items() if t is not None}
            self._terms.clear()
            self._version = snapshot.version
        key = (id(principal), model.name)
        known = self._terms.get(key)
        if known is not None and known[0] is principal:
            return known[1]
        if len(self._terms) >= _CAPACITY:
            self._terms.clear()
        terms = self._find(principal, model)
        self._terms[key] = (principal, terms)
        return terms

    def hold_now(self, terms: Terms, work: Work) -> tuple[Work, Hold] | None:
        """A hold out of what this process has at hand; None where it has to be asked for, or refused.

        Raises InvalidRequest.
        """
        limiter = self._limiter
        if limiter is None:
            return None
        if not terms.amounts:
            reservation = limiter.reserve_now(terms.limits, _ONE)
            return None if reservation is None else (work, only_called(reservation))
        work, bound, prices, _ = self._bound(terms, work, measure(work))
        reservation = limiter.reserve_now(terms.limits, bound)
        return None if reservation is None else (work, Hold(reservation, bound, True, terms.counts_money, prices))

    async def hold_call(self, terms: Terms) -> Reservation | None:
        """Reserve what needs no knowledge of the request's size, for one whose size is not known yet.

        To be handed to `hold`, or settled. Raises RateLimited, QuotaExceeded or StateStoreUnavailable.
        """
        return await self._reserve(terms.calls, _ONE) if terms.calls else None

    async def hold(
        self, terms: Terms, request: SlimRequest, work: Work, called: Reservation | None = None
    ) -> tuple[Work, Hold]:
        """The work as it may be done, and what is held for it; `called` is what `hold_call` gave.

        Raises InvalidRequest, RateLimited, QuotaExceeded or StateStoreUnavailable; `called` is then the caller's still.
        """
        if not terms.amounts:
            return work, only_called(called or await self._reserve(terms.limits, _ONE))
        limits = terms.limits if called is None else terms.amounts
        size = measure(work)
        bounded = self._bound(terms, work, size)
        try:
            reservation = await self._reserve(limits, bounded.charge)
        except (RateLimited, QuotaExceeded) as refusal:
            fewer = await self._recount(terms, request, work, size, bounded.charge, refusal)
            if fewer is None:
                raise
            bounded = fewer
            reservation = await self._reserve(limits, bounded.charge)
        if called is not None:
            reservation = Both(called, reservation)
        hold = Hold(reservation, bounded.charge, True, terms.counts_money, bounded.prices, bounded.counting_seconds)
        return bounded.work, hold

    async def _reserve(self, limits: Sequence[LimitRow], bound: Charge) -> Reservation:
        if self._limiter is None:
            raise StateStoreUnavailable(retry_after_seconds=_NO_STORE_RETRY_SECONDS)
        return self._limiter.reserve_now(limits, bound) or await self._limiter.reserve(limits, bound)

    async def _recount(
        self,
        terms: Terms,
        request: SlimRequest,
        work: Work,
        size: Size,
        bound: Charge,
        refusal: RateLimited | QuotaExceeded,
    ) -> _Bounded | None:
        """The bound with the prompt counted by an engine, where that is less; None where it is not."""
        if self._counter is None or size.media or not worth_counting(refusal, size, bound):
            return None
        began_at = time.perf_counter()
        counted = await self._counter.count(request, work, terms.model.id, terms.principal.tenant_id)
        if counted is None:
            return None
        seconds = time.perf_counter() - began_at
        fewer = self._bound(terms, work, recounted(size, counted))._replace(counting_seconds=seconds)
        return fewer if fewer.charge.input_tokens < bound.input_tokens else None

    def _bound(self, terms: Terms, work: Work, size: Size) -> _Bounded:
        model = terms.model
        tokens = bound_tokens(
            size,
            context=terms.context,
            allowance=self._template_tokens if size.answers else _MARKER_TOKENS,
            default_max=self._default_max(work, terms, size),
        )
        prices, micros = None, 0
        if terms.counts_money and work.api is not Api.TOKENIZE:
            prices = self._snapshot.prices(model.name, self._now())
            micros = _most_micros(prices, tokens)
        if tokens.most_tokens is not None:
            work = Work(work.api, work.path, work.body, work.parsed, work.dialect, tokens.most_tokens)
        return _Bounded(work, Charge(tokens.input_tokens, tokens.output_tokens, micros), prices)

    def _default_max(self, work: Work, terms: Terms, size: Size) -> int:
        """The end of an answer that is given none: for completions engines may have one, of a few tokens."""
        if work.api is not Api.COMPLETIONS or size.max_tokens is not None:
            return self._default_max_tokens
        own = [
            None if (room := find_room(endpoint.engine)) is None else room.completion_max_default
            for endpoint in self._snapshot.endpoints(terms.model.id, terms.principal.tenant_id)
        ]
        known = [most for most in own if most is not None]
        return max(known) if known and len(known) == len(own) else self._default_max_tokens

    def _find(self, principal: Principal, model: ModelRow) -> Terms | None:
        found = [
            row
            for row in self._snapshot.limits(principal.tenant_id, principal.limits_id, model.name)
            if row.metric in _CALLS or row.metric in _TOKENS or row.metric == _MONEY
        ]
        if principal.rpm_limit is not None and principal.limits_id is not None:
            found.append(key_limit(principal.limits_id, principal.tenant_id, principal.rpm_limit))
        if not found:
            return None
        limits = tuple(found)
        context = _context(principal, model)
        before = self._before.get((principal.pk, model.name))
        if before is not None and before.limits == limits:
            return replace(before, principal=principal, model=model, context=context)
        return Terms(
            principal=principal,
            model=model,
            limits=limits,
            calls=tuple(row for row in limits if row.metric in _CALLS),
            amounts=tuple(row for row in limits if row.metric not in _CALLS),
            counts_money=any(row.metric == _MONEY for row in limits),
            context=context,
        )


def _context(principal: Principal, model: ModelRow) -> Context:
    """Of the versions that the tenant's requests go to: another tenant's own ones neither cut nor lengthen them."""
    for tenant_id, shortest, longest in model.own_contexts:
        if tenant_id == principal.tenant_id:
            return Context(shortest, longest)
    return Context(model.context_tokens, model.longest_context_tokens)


def _most_micros(prices: Sequence[PriceRow], tokens: TokenBound) -> int:
    return max(
        (bound_micros(row.tag, input_tokens=tokens.input_tokens, output_tokens=tokens.output_tokens) for row in prices),
        default=0,
    )


def only_called(reservation: Reservation) -> Hold:
    """A hold under limits that count requests alone."""
    return Hold(reservation, _ONE, counts_tokens=False, counts_money=False)


def worth_counting(refusal: RateLimited | QuotaExceeded, size: Size, bound: Charge) -> bool:
    """Whether a smaller bound of the prompt may pass: a budget that is used up makes no engine count."""
    if refusal.metric == _MONEY:
        return refusal.lacking < bound.micros
    if refusal.metric not in ("tokens", "input_tokens"):
        return False
    fewest = size.text_bytes // _MOST_BYTES_PER_TOKEN
    # Without a time to come back the bound alone is more than the limit: that is not to be said of the request.
    return refusal.retry_after_seconds is None or refusal.lacking <= bound.input_tokens - fewest


def release(reservation: Reservation) -> None:
    """Give back all of a reservation whose request is not forwarded."""
    reservation.settle(NOTHING, 0)

"""`GET /v1/usage`: what a key (or a token's subject) has used itself, and how the limits stand that hold it.

Query: `start` and `end` as days (`2026-11-01`, in the tenant's zone), times (RFC 3339) or seconds since the epoch; this
month so far where not said. `by` says how the sums are told apart: `day`, `model` or `day,model`.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import parse_qs
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from core.errors import GatehouseError, InvalidRequest, MethodNotAllowed, SnapshotStale, TenantSuspended, Unavailable
from core.telemetry import metrics
from gateway.relay.limit_reader import Standing
from gateway.relay.limiting.key_limits import key_limit
from gateway.relay.plan import SlimRequest
from gateway.relay.rows import LimitRow, TenantRow
from gateway.relay.snapshot import Snapshot
from tenants.policies.periods import period_at
from tenants.policies.quota import POOLED
from tenants.principal import Principal

USAGE: Final = "/v1/usage"
ALLOWED: Final = b"GET, HEAD, OPTIONS"
MOST_DAYS: Final = 93
"""Longest range: a quarter."""

_MINUTE: Final = 60
_DAY_SECONDS: Final = 86_400
_PARAMETERS: Final = frozenset({"start", "end", "by"})
_GROUPS: Final = {"day": (True, False), "model": (False, True), "day,model": (True, True), "model,day": (True, True)}


class UsageUnavailable(Unavailable):
    """The database cannot be asked now, or there is too much of it to sum in time."""

    code: ClassVar[str] = "usage_unavailable"
    default_message: ClassVar[str] = "Usage cannot be read now."


class UsageAsk(msgspec.Struct, frozen=True):
    """Whose usage, from when until when (seconds since the epoch, whole minutes), and how it is told apart."""

    tenant_id: UUID
    key_id: UUID | None
    subject_id: UUID | None
    since: int
    until: int
    time_zone: str
    by_day: bool
    by_model: bool


class UsageRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sum. Money in millionths of the currency."""

    day: str | None = None  # in the tenant's zone
    model: str | None = None
    requests: int
    failures: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_micros: int


class UsageRead(msgspec.Struct, frozen=True):
    """What the database says: by day and model in that order, without sums of nothing."""

    currency: str
    rows: list[UsageRow]


class UsageStore(Protocol):
    """Sums of usage."""

    async def read(self, ask: UsageAsk) -> UsageRead:
        """Raises UsageUnavailable within a few seconds."""


class Standings(Protocol):
    """How limits stand."""

    async def read(self, limits: Sequence[LimitRow], now: float) -> list[Standing | None]:
        """Of each limit, None where it is not known."""


class Authentication(Protocol):
    """gateway.authentication.MachineAuthentication, as is needed here."""

    def credential(self, request: SlimRequest) -> str:
        """The credential that the request carries. Raises Unauthenticated."""

    def identify(self, digest: str) -> tuple[Principal, Any]:
        """Who the credential of that digest is; it has been resolved. Raises GatehouseError."""


class OwnUsage:
    """Answers /v1/usage at both doors. `door`: relay or drf, for the count of refusals; `now` in seconds."""

    def __init__(
        self,
        store: UsageStore,
        standings: Standings | None,
        snapshot: Snapshot,
        *,
        door: str,
        now: Callable[[], float],
        resolve: Callable[[str], Awaitable[str]],
        authentication: Authentication,
    ) -> None:
        self._store = store
        self._standings = standings
        self._snapshot = snapshot
        self._door = door
        self._now = now
        self._resolve = resolve
        self._authentication = authentication

    async def answer(self, method: str, request: SlimRequest, query: bytes) -> bytes:
        """The body of an answer with status 200. Raises GatehouseError."""
        try:
            return await self._answer(method, request, query)
        except GatehouseError as error:
            metrics.record_refusal(self._door, error.code)
            raise

    async def _answer(self, method: str, request: SlimRequest, query: bytes) -> bytes:
        if method.encode() not in ALLOWED.split(b", "):
            raise MethodNotAllowed(headers=((b"allow", ALLOWED),))
        digest = await self._resolve(self._authentication.credential(request))
        principal, _ = self._authentication.identify(digest)
        tenant = self._snapshot.tenant(principal.tenant_id)
        if tenant is None:
            raise SnapshotStale(retry_after_seconds=1)
        if not tenant.active:
            raise TenantSuspended
        now = self._now()
        ask = parse_ask(query, principal, tenant, now)
        read = await self._store.read(ask)
        zone = ZoneInfo(tenant.time_zone)
        told = {
            "object": "usage",
            "start": _moment(ask.since, zone),
            "end": _moment(ask.until, zone),
            "time_zone": tenant.time_zone,
            "currency": read.currency or None,
            "total": _total(read.rows),
            "data": read.rows,
            "limits": await self._limits(principal, now),
        }
        return msgspec.json.encode(told)

    async def _limits(self, principal: Principal, now: float) -> list[dict[str, Any]]:
        """Those of the key, its tenant and the departments above; the platform's own are nobody else's business."""
        limits = [
            limit
            for limit in self._snapshot.limits_about(principal.tenant_id, principal.limits_id)
            if limit.metric not in POOLED
        ]
        if principal.rpm_limit is not None and principal.limits_id is not None:
            limits.append(key_limit(principal.limits_id, principal.tenant_id, principal.rpm_limit))
        limits.sort(key=lambda limit: (limit.metric, limit.window, limit.model, limit.id))
        standings: Sequence[Standing | None] = [None] * len(limits)
        if self._standings is not None:
            standings = await self._standings.read(limits, now)
        return [_limit(limit, standing, principal, now) for limit, standing in zip(limits, standings, strict=True)]


def parse_ask(query: bytes, principal: Principal, tenant: TenantRow, now: float) -> UsageAsk:
    """What a query asks for. Raises InvalidRequest naming the parameter that makes no sense."""
    asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for name, values in asked.items():
        if name not in _PARAMETERS:
            raise InvalidRequest(f"There is no parameter '{name[:64]}' here.", param=name[:64])
        if len(values) > 1:
            raise InvalidRequest(f"'{name}' is given twice.", param=name)
    group = _GROUPS.get(asked.get("by", ["day,model"])[0])
    if group is None:
        raise InvalidRequest("Invalid value for 'by': expected day, model or day,model.", param="by")
    start, end = asked.get("start"), asked.get("end")
    until = now if end is None else _parse_moment("end", end[0], tenant.time_zone)
    until = -(-until // _MINUTE) * _MINUTE
    if start is None:
        since = period_at("month", tenant.time_zone, min(now, until - 1)).start
    else:
        since = _parse_moment("start", start[0], tenant.time_zone)
    since = since // _MINUTE * _MINUTE
    if until <= since:
        raise InvalidRequest("The end is not after the start.", param="end")
    if until - since > MOST_DAYS * _DAY_SECONDS + 7200:  # clocks may have been changed within
        raise InvalidRequest(f"At most {MOST_DAYS} days can be asked for at once.", param="start")
    return UsageAsk(
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        subject_id=principal.subject_id,
        since=int(since),
        until=int(until),
        time_zone=tenant.time_zone,
        by_day=group[0],
        by_model=group[1],
    )


def _parse_moment(name: str, text: str, zone: str) -> float:
    """Seconds since the epoch, of a time that databases know too."""
    try:
        if text.isascii() and text.isdigit() and len(text) <= 11:
            moment = datetime.fromtimestamp(int(text), UTC)
        elif len(text) == 10:
            noon = datetime.fromisoformat(f"{date.fromisoformat(text)}T12:00").replace(tzinfo=ZoneInfo(zone))
            moment = datetime.fromtimestamp(period_at("day", zone, noon.timestamp()).start, UTC)
        else:
            moment = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign is a blank in a query
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=ZoneInfo(zone))
        if 1970 < moment.astimezone(UTC).year < 9000:
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(
        f"Invalid value for '{name}': expected a day (2026-11-01), a time (RFC 3339) or seconds since the epoch.",
        param=name,
    )


def _moment(seconds: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(seconds, zone).isoformat()


def _total(rows: Sequence[UsageRow]) -> dict[str, int]:
    names = ("requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "cost_micros")
    return {name: sum(getattr(row, name) for row in rows) for name in names}


def _limit(limit: LimitRow, standing: Standing | None, principal: Principal, now: float) -> dict[str, Any]:
    """Null for what cannot be known now."""
    scope = "key" if limit.key_id else "tenant" if limit.tenant_id == principal.tenant_id else "department"
    return {
        "id": str(limit.id),
        "scope": scope,
        "model": limit.model or None,
        "metric": limit.metric,
        "window": limit.window,
        "limit": limit.amount_at(now),
        "used": standing.used if standing else None,
        "reserved": standing.reserved if standing else None,
        "remaining": standing.remaining if standing else None,
        "reset_seconds": standing.reset_seconds if standing else None,
    }

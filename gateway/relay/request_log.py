"""One structured line for each request that is worth one: what it was, whose, how it ended and how long it took.

Its names are request_id, tenant, status_code, duration_ms and trace_id, beside what else is known. No path, no query
and no body: a client may have put a secret there. Where nothing is logged, nothing is built.
"""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import structlog

from core.env import SettingsError
from core.errors import GatehouseError
from gateway.relay.context import trace_id
from gateway.relay.plan import Headers, Outcome, Settlement, SlimRequest
from tenants.principal import Principal
from tenants.usage import OpenRow

logger = structlog.get_logger("gatehouse.request")

_REFUSALS_A_SECOND: Final = 20


Whose = Callable[[SlimRequest], Principal | None]
"""Who is behind a request, where that is known."""


class Mode(StrEnum):
    """`errors` are requests that failed, were refused, or took long."""

    OFF = "off"
    ERRORS = "errors"
    ALL = "all"

    @classmethod
    def of(cls, setting: str) -> "Mode":
        """Raises SettingsError for what is none."""
        try:
            return cls(setting)
        except ValueError as error:
            raise SettingsError(f"GATEHOUSE_REQUEST_LOG={setting!r} is none of {', '.join(cls)}") from error


class RequestLog:
    """The request log of one process.

    Whoever is refused may ask again at once, thousands of times a second: under `errors` refusals below status 500 are
    written at most 20 a second, the next one saying how many were held back. `slow_seconds` is what counts as long.
    """

    def __init__(
        self,
        mode: Mode = Mode.OFF,
        *,
        door: str = "relay",
        slow_seconds: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._off = mode is Mode.OFF
        self._all = mode is Mode.ALL
        self._door = door
        self._slow_seconds = slow_seconds
        self._monotonic = monotonic
        self._second = 0
        self._told = 0
        self._held_back = 0

    def settled(self, opened: OpenRow, settlement: Settlement, principal: Principal, headers: Headers) -> None:
        """A request that was forwarded has ended."""
        if self._off:
            return
        seconds = settlement.duration_seconds
        well = settlement.outcome is Outcome.SUCCESS and settlement.status < 400
        if well and not self._all and seconds < self._slow_seconds:
            return
        self._write(
            request_id=str(opened.id),
            trace_id=trace_id(headers),
            tenant=principal.tenant_slug,
            status_code=settlement.status,
            duration_ms=round(seconds * 1000, 3),
            api=opened.api,
            model=opened.model,
            outcome=settlement.outcome,
            error_code=settlement.error_code or None,
            attempts=settlement.attempts,
        )

    def refused(self, request: SlimRequest, error: GatehouseError, *, whose: Whose) -> None:
        """A request was refused before it was forwarded; `whose` is only asked for a line that is written."""
        if self._off or (not self._all and error.status < 500 and not self._has_room()):
            return
        principal = whose(request)
        held_back, self._held_back = self._held_back, 0
        self._write(
            request_id=str(request.request_id),
            trace_id=trace_id(request.headers),
            tenant=principal.tenant_slug if principal is not None else None,
            status_code=error.status,
            duration_ms=round((self._monotonic() - request.received_at) * 1000, 3),
            api=request.api,
            error_code=error.code,
            held_back=held_back or None,
        )

    def _has_room(self) -> bool:
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._told = second, 0
        self._told += 1
        if self._told <= _REFUSALS_A_SECOND:
            return True
        self._held_back += 1
        return False

    def _write(self, **fields: Any) -> None:
        status = fields["status_code"]
        write = logger.error if status >= 500 else logger.info
        write("request", door=self._door, **{name: value for name, value in fields.items() if value is not None})


SILENT: Final = RequestLog()

"""Counts refused requests by whom, for what and why, and sends the counts to the worker every few seconds.

A refusal is no row of the ledger: whoever is refused may ask again thousands of times a second. Counts of the last
seconds die with a process that is killed; what was sent is counted once, however often it is sent.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

import structlog

from core.errors import GatehouseError, QuotaExceeded, RateLimited
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable
from tenants.principal import Principal
from tenants.refusals import STREAM, STREAM_BATCHES, RefusalBatch, RefusalCount, encode_batch

logger = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 3.0
MOST_COUNTS: Final = 2_000
"""Reasons told apart between two batches; beyond it keys and models are not told apart, beyond twice that nobody is."""

_CALL_DEADLINE_SECONDS: Final = 1.0
_Key = tuple[UUID | None, UUID | None, str, str, int, str, str, int]


class RefusalCounts:
    """The counts of one process. `now`: seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: dict[_Key, int] = {}

    def note(self, principal: Principal | None, model: str, error: GatehouseError) -> None:
        """Count one. `model` is a name of the catalogue that the principal may use, "" where none was named."""
        tenant_id, key_id = (None, None) if principal is None else (principal.tenant_id, principal.key_id)
        metric, window = "", ""
        if isinstance(error, RateLimited | QuotaExceeded):
            metric, window = error.metric, error.window
        minute = int(self._now() // 60) * 60
        counts = self._counts
        key = (tenant_id, key_id, model, error.code, error.status, metric, window, minute)
        if key not in counts and len(counts) >= MOST_COUNTS:
            key = (tenant_id, None, "", error.code, error.status, metric, window, minute)
            if key not in counts and len(counts) >= 2 * MOST_COUNTS:
                key = (None, None, "", error.code, error.status, metric, window, minute)
        counts[key] = counts.get(key, 0) + 1

    def take(self) -> list[RefusalCount]:
        """What was counted since the last time."""
        counts, self._counts = self._counts, {}
        return [RefusalCount(*key, refusals) for key, refusals in counts.items()]


class RefusalOutbox:
    """Sends the counts of one process; `process_id` is of this start of it alone."""

    def __init__(self, counts: RefusalCounts, client: ValkeyClient, *, prefix: str, process_id: UUID) -> None:
        self._counts = counts
        self._client = client
        self._stream = prefix + STREAM
        self._process_id = process_id
        self._sequence = 0
        self._unsent: bytes | None = None

    async def run(self) -> None:
        """Send until cancelled."""
        complained = False
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.send()
                complained = False
            except (ValkeyUnavailable, ValkeyRefused) as error:
                if not complained:
                    logger.warning("refusals_not_sent", error=str(error))
                complained = True

    async def send(self) -> None:
        """Send what was counted. Raises ValkeyUnavailable or ValkeyRefused; the same batch is then sent again."""
        if self._unsent is None:
            counts = self._counts.take()
            if not counts:
                return
            self._sequence += 1
            self._unsent = encode_batch(RefusalBatch(self._process_id, self._sequence, counts))
        await self._client.call(
            *("XADD", self._stream, "MAXLEN", "~", STREAM_BATCHES, "*", "d", self._unsent),
            deadline_seconds=_CALL_DEADLINE_SECONDS,
        )
        self._unsent = None

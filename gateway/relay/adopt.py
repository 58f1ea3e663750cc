"""A living process takes over what dead ones on its machine left in their spools.

The drain does so too, faster; this is for machines that have relays and no drain.

What limits still hold for the dead process goes once the ledger has these rows: it is told where to look for them.
"""

import asyncio
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

import structlog

from gateway.relay.limiting.layout import MOST, area
from gateway.relay.recovery import DeadSpool, claim_dead_spools
from gateway.relay.settle import Settler
from gateway.relay.spool import SpoolFull
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable

logger = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 15.0
_ROWS_PER_TURN: Final = 200
_NOTE_DEADLINE_SECONDS: Final = 1.0


class Notes(Protocol):
    """Where it is written down who took whose rows over."""

    async def write(self, dead: UUID, first: int, last: int | None) -> None:
        """They are the rows `first` to `last` of this process's spool; None: it is not done yet.

        Raises ValkeyUnavailable or ValkeyRefused.
        """


class ValkeyNotes:
    """In the hash `adopted`, beside the limits' counters; see gateway.services.limit_counters."""

    def __init__(self, client: ValkeyClient, *, prefix: str, process_id: UUID) -> None:
        self._client = client
        self._key = area(prefix) + "adopted"
        self._process_hex = process_id.hex

    async def write(self, dead: UUID, first: int, last: int | None) -> None:
        said = f"{self._process_hex}:{first}:{MOST if last is None else last}"
        await self._client.call("HSET", self._key, dead.hex, said, deadline_seconds=_NOTE_DEADLINE_SECONDS)


class Adopter:
    """Moves rows of dead spools under `parent` into the settler's own. `notes`: None where there are no limits."""

    def __init__(
        self, settler: Settler, parent: Path, *, notes: Notes | None = None, every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._settler = settler
        self._parent = parent
        self._notes = notes
        self._every_seconds = every_seconds

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            try:
                await self.adopt_all()
            except (SpoolFull, OSError, ValkeyUnavailable, ValkeyRefused) as error:
                logger.warning("spool_not_adopted", error=str(error))

    async def adopt_all(self) -> int:
        """Adopt every dead spool; returns how many rows they had.

        Raises SpoolFull, OSError, or what Valkey raises: without it the rows would not get further from here either.
        """
        total = 0
        for spool in claim_dead_spools(self._parent):
            try:
                first = self._settler.spool.last_sequence + 1
                await self._note(spool, first, None)
                count = await self._adopt(spool)
                await self._settler.sync()
                await self._note(spool, first, self._settler.spool.last_sequence)
            except BaseException:
                spool.release()  # rows that were moved already are in the ledger once all the same
                raise
            spool.remove()
            logger.info("spool_adopted", process_id=str(spool.process_id), rows=count)
            total += count
        return total

    async def _note(self, spool: DeadSpool, first: int, last: int | None) -> None:
        if self._notes is not None:
            await self._notes.write(spool.process_id, first, last)

    async def _adopt(self, spool: DeadSpool) -> int:
        rows = await asyncio.to_thread(lambda: list(spool.rows()))
        for start in range(0, len(rows), _ROWS_PER_TURN):
            for row in rows[start : start + _ROWS_PER_TURN]:
                self._settler.take_over(row)
            await asyncio.sleep(0)
        return len(rows)

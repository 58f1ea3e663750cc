"""A living process takes over what dead ones on its machine left in their spools.

The drain does so too, faster; this is for machines that have relays and no drain.
"""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from gateway.relay.recovery import DeadSpool, claim_dead_spools
from gateway.relay.settle import Settler
from gateway.relay.spool import SpoolFull

logger = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 15.0
_ROWS_PER_TURN: Final = 200


class Adopter:
    """Moves rows of dead spools under `parent` into the settler's own."""

    def __init__(self, settler: Settler, parent: Path, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._settler = settler
        self._parent = parent
        self._every_seconds = every_seconds

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            try:
                await self.adopt_all()
            except (SpoolFull, OSError) as error:
                logger.warning("spool_not_adopted", error=str(error))

    async def adopt_all(self) -> int:
        """Adopt every dead spool; returns how many rows they had. Raises SpoolFull or OSError."""
        total = 0
        for spool in claim_dead_spools(self._parent):
            try:
                count = await self._adopt(spool)
                await self._settler.sync()
            except BaseException:
                spool.release()  # rows that were moved already are in the ledger once all the same
                raise
            spool.remove()
            logger.info("spool_adopted", process_id=str(spool.process_id), rows=count)
            total += count
        return total

    async def _adopt(self, spool: DeadSpool) -> int:
        rows = await asyncio.to_thread(lambda: list(spool.rows()))
        for start in range(0, len(rows), _ROWS_PER_TURN):
            for row in rows[start : start + _ROWS_PER_TURN]:
                self._settler.take_over(row)
            await asyncio.sleep(0)
        return len(rows)

"""The leader's upkeep goes on through a database that is away, and ends with its term."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from core.clock import SystemClock
from gpupool.controller.upkeep import keep_up
from gpupool.leases.fencing import Fence, Superseded

FENCE = Fence("controller", 1)


async def test_it_looks_again_after_the_database_was_away_and_ends_when_superseded() -> None:
    outcomes: list[Exception | None] = [
        OperationalError("away"),
        OperationalError("away"),
        None,
        Superseded("controller"),
    ]
    looks = 0

    async def in_thread(call: Callable[[], Any]) -> Any:
        nonlocal looks
        looks += 1
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    with pytest.raises(Superseded):
        async with asyncio.timeout(5):
            await keep_up(FENCE, clock=SystemClock(), in_thread=in_thread, failed_grace_seconds=15, seconds=0)
    assert looks == 4

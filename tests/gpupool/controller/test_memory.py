"""Keeping the memory's history: it goes on through troubles, and ends with the leader's term."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from core.clock import SystemClock
from gpupool.controller.memory import keep_memory
from gpupool.leases.fencing import Fence, Superseded


async def test_neither_a_database_away_nor_a_defect_ends_it_and_a_new_leader_does() -> None:
    outcomes: list[Exception | None] = [OperationalError("away"), ValueError("defect"), None, Superseded("controller")]
    looks = 0

    async def in_thread(call: Callable[[], Any]) -> Any:
        nonlocal looks
        looks += 1
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    with pytest.raises(Superseded):
        async with asyncio.timeout(5):
            await keep_memory(Fence("controller", 1), clock=SystemClock(), in_thread=in_thread, seconds=0)
    assert looks == 4

"""Sending: in order of time, never more at once than allowed, readable when cut off."""

import asyncio

import pytest

from gateway.replay.run import Progress, replay
from gateway.replay.schedule import PlannedRequest
from gateway.replay.summary import Answered, Result

REQUESTS = [PlannedRequest(number, number / 1000, "a", 1) for number in range(20)]


async def test_never_more_in_flight_than_allowed() -> None:
    under_way = most = 0

    async def send(request: PlannedRequest) -> Result:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.003)
        under_way -= 1
        return Answered(0.0, 0.0, 1, 1)

    progress = Progress()
    await replay(REQUESTS, send, progress, in_flight=3)
    assert most == 3
    assert progress.summary().succeeded == len(REQUESTS)
    assert progress.latest_start_seconds > 0


async def test_nothing_is_sent_before_it_is_due() -> None:
    loop = asyncio.get_running_loop()
    progress = Progress()
    early: list[int] = []

    async def send(request: PlannedRequest) -> Result:
        if loop.time() < progress.started_at + request.due_seconds:
            early.append(request.number)
        return Answered(0.0, 0.0, 1, 1)

    await replay(REQUESTS, send, progress, in_flight=64)
    assert early == []


async def test_what_was_answered_is_still_known_when_cut_off() -> None:
    arrived = asyncio.Event()

    async def send(request: PlannedRequest) -> Result:
        if request.number == 2:
            arrived.set()
            await asyncio.Event().wait()
        return Answered(0.0, 0.0, 1, 1)

    progress = Progress()
    task = asyncio.ensure_future(replay(REQUESTS, send, progress, in_flight=3))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert progress.summary().succeeded >= 2

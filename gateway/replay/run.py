"""Sends planned requests at their times, bounded in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.replay.schedule import PlannedRequest
from gateway.replay.summary import Result, Summary, summarise


@dataclass(slots=True)
class Progress:
    """What is known so far; stays readable when the replay is cut off. Times in loop seconds."""

    results: list[Result] = field(default_factory=list)
    started_at: float = 0.0
    ended_at: float = 0.0
    latest_start_seconds: float = 0.0

    def summary(self) -> Summary:
        return summarise(
            self.results,
            seconds=max(0.0, self.ended_at - self.started_at),
            latest_start_seconds=self.latest_start_seconds,
        )


async def replay(
    requests: Sequence[PlannedRequest],
    send: Callable[[PlannedRequest], Awaitable[Result]],
    progress: Progress,
    *,
    in_flight: int,
) -> None:
    """Send every request when it is due, or as soon after as fewer than `in_flight` are under way."""
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(in_flight)
    progress.started_at = progress.ended_at = loop.time()

    async def carry(request: PlannedRequest) -> None:
        try:
            progress.results.append(await send(request))
        finally:
            progress.ended_at = loop.time()
            slots.release()

    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            due = progress.started_at + request.due_seconds
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await slots.acquire()
            progress.latest_start_seconds = max(progress.latest_start_seconds, loop.time() - due)
            tasks.create_task(carry(request))

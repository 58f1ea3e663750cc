import asyncio

import pytest

from core import ending
from core.ending import end_tasks


async def stubborn(losses: int, ended: list[str]) -> None:
    """Loses so many cancellations, as a library may."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if losses == 0:
                ended.append("ended")
                raise
            losses -= 1


async def started(losses: int, ended: list[str]) -> "asyncio.Task[None]":
    task = asyncio.create_task(stubborn(losses, ended))
    await asyncio.sleep(0)
    return task


async def test_tasks_are_cancelled_and_waited_for() -> None:
    ended: list[str] = []
    await end_tasks(*[await started(0, ended) for _ in range(3)])
    assert ended == ["ended"] * 3


async def test_a_task_that_loses_a_cancellation_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_AGAIN_SECONDS", 0.01)
    ended: list[str] = []
    await end_tasks(await started(2, ended))
    assert ended == ["ended"]


async def test_tasks_that_are_over_and_failed_are_nothing_to_wait_for() -> None:
    async def broken() -> None:
        raise ValueError

    task = asyncio.create_task(broken())
    await asyncio.wait([task])
    await end_tasks(task)
    await end_tasks()
    assert isinstance(task.exception(), ValueError)

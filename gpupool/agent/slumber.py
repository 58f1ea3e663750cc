"""Putting an engine to sleep and waking it, by what its room says. An engine is asked, never guessed about."""

import asyncio
from typing import Final

from gpupool.agent.probe import ProbeFailed, ask
from gpupool.engines.base import Engine, WireRequest

_POLL_SECONDS: Final = 0.1
SLEEP_LEVEL: Final = 1  # weights in host memory: the level that comes back by itself


class SleepRefused(Exception):
    """The engine says that it does not sleep: it is awake as before. The message is a sentence."""


class SleepUnclear(Exception):
    """It cannot be told whether the engine sleeps or not. The message is a sentence."""


async def fall_asleep(engine: Engine, port: int, *, deadline_seconds: float) -> None:
    """Return once the engine sleeps. Raises SleepRefused or SleepUnclear."""
    request = None if engine.control is None else engine.control.sleep(SLEEP_LEVEL)
    if request is None:
        raise SleepRefused(f"{engine.title} cannot sleep.")
    status = await _ask(engine, port, request, deadline_seconds)
    if status != 200:
        raise SleepRefused(f"{engine.title} does not sleep: it answers {request.path} with {status}.")
    if await sleeping(engine, port, deadline_seconds=deadline_seconds) is False:
        raise SleepRefused(f"{engine.title} says that it is awake after it was told to sleep.")


async def wake_up(engine: Engine, port: int, *, deadline_seconds: float) -> None:
    """Return once the engine says it is awake, or at once where it does not say. Raises SleepUnclear.

    The caller bounds the whole wait.
    """
    request = None if engine.control is None else engine.control.wake()
    if request is None:
        raise SleepUnclear(f"{engine.title} cannot be woken.")
    status = await _ask(engine, port, request, deadline_seconds)
    if status != 200:
        raise SleepUnclear(f"{engine.title} does not wake: it answers {request.path} with {status}.")
    while True:
        if not await sleeping(engine, port, deadline_seconds=deadline_seconds):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def sleeping(engine: Engine, port: int, *, deadline_seconds: float) -> bool | None:
    """Whether the engine says it sleeps; None where it does not say."""
    request = None if engine.control is None else engine.control.is_sleeping()
    if request is None or engine.control is None:
        return None
    try:
        answer = await ask(port, request, deadline_seconds=deadline_seconds)
        return engine.control.parse_sleeping(answer.body) if answer.status == 200 else None
    except (ProbeFailed, ValueError):
        return None


async def _ask(engine: Engine, port: int, request: WireRequest, deadline_seconds: float) -> int:
    try:
        return (await ask(port, request, deadline_seconds=deadline_seconds)).status
    except ProbeFailed as error:
        raise SleepUnclear(f"{engine.title} was asked and it is not known what it did: {error}.") from error

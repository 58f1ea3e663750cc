"""What the leader's tasks share: database work off the loop, and looks that go on while the database is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog
from django.db import Error

logger = structlog.get_logger(__name__)

T = TypeVar("T")


class InThread(Protocol):
    """Does database work off the loop."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


async def keep_looking(look: Callable[[], Awaitable[None]], *, event: str, seconds: float) -> None:
    """Until cancelled, or until a look raises something else than that the database is away. That is logged once."""
    blind = False
    while True:
        try:
            await look()
            blind = False
        except Error as error:
            if not blind:
                logger.warning(event, error=str(error))
            blind = True
        await asyncio.sleep(seconds)

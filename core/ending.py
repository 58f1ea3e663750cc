"""How tasks of an event loop are ended: until they have."""

import asyncio
from typing import Any, Final

_AGAIN_SECONDS: Final = 5.0


async def end_tasks(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for them. What they raise is dropped.

    One cancellation is not always enough: `asyncio.wait_for` loses it, before Python 3.12, where what it waits for
    ends at the same moment, and so may whatever library uses it. A task that is still there is told again, seldom
    enough to let it tidy up.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        try:
            _, pending = await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
        except asyncio.CancelledError:  # nobody waits for them any longer, so they are told once more
            for task in pending:
                task.cancel()
            raise
    await asyncio.gather(*tasks, return_exceptions=True)  # nobody else asks what became of them

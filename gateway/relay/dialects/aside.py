"""Large bodies are translated on a thread of their own: what takes Python a second must not hold everybody's loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

LARGE_BYTES: Final = 64 * 1024  # some two milliseconds of the smallest messages; a thread costs a tenth of one


class Aside:
    """One thread: large bodies wait for each other, and small ones for none of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="translation")

    async def run(self, call: Callable[[], T], *, size_bytes: int) -> T:
        """The result of `call`, which is to read so many bytes."""
        if size_bytes <= LARGE_BYTES:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

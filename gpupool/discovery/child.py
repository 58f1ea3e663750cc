"""A probe in a child process that can be killed: a driver that hangs must not hang the agent.

The child answers each line on its standard input with one line of JSON, and ends when its input ends.
"""

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from core.clock import Clock

_LARGEST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_MOST_STUCK: Final = 2
_LONGEST_PAUSE_SECONDS: Final = 60.0


class ProbeMissed(Exception):
    """No answer this time; the message is a sentence."""


class ProbeChild:
    """One long-lived child, restarted after a missed deadline with a growing pause."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        clock: Clock,
        deadline_seconds: float = 2.0,
        first_deadline_seconds: float = 15.0,
    ) -> None:
        """A first answer may take longer: loading a GPU driver takes seconds."""
        self._argv = tuple(argv)
        self._env = dict(env)
        self._clock = clock
        self._deadline = deadline_seconds
        self._first_deadline = first_deadline_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._answered = False
        self._misses = 0
        self._not_before = 0.0
        self._stuck: list[asyncio.subprocess.Process] = []

    @property
    def pid(self) -> int | None:
        """The child that would be asked next."""
        return self._process.pid if self._process is not None else None

    async def ask(self) -> bytes:
        """One answer. Raises ProbeMissed; the child is gone then, and not started again before the pause is over."""
        process = await self._running()
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        deadline = self._deadline if self._answered else self._first_deadline
        try:
            async with asyncio.timeout(deadline):
                process.stdin.write(b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError:
            await self._give_up(process)
            raise ProbeMissed(f"The probe did not answer within {deadline:g} s and was killed.") from None
        except (OSError, ValueError) as error:  # ValueError: a line beyond the limit
            await self._give_up(process)
            raise ProbeMissed(f"The probe's answer could not be read: {error}.") from error
        if not answer.endswith(b"\n"):
            await self._give_up(process)
            raise ProbeMissed(f"The probe ended with code {process.returncode}.")
        self._answered, self._misses = True, 0
        return answer

    async def close(self) -> None:
        """End the child; the next `ask` starts another."""
        process, self._process = self._process, None
        if process is not None:
            await self._kill(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        if self._clock.monotonic() < self._not_before:
            raise ProbeMissed("The probe failed and is tried again soon.")
        self._stuck = [process for process in self._stuck if process.returncode is None]
        if len(self._stuck) >= _MOST_STUCK:
            self._pause()
            raise ProbeMissed(f"{len(self._stuck)} probes hang in the kernel and cannot even be killed.")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._env,
                limit=_LARGEST_ANSWER_BYTES,
                start_new_session=True,  # a Ctrl-C meant for the agent is not meant for it
            )
        except OSError as error:
            self._pause()
            raise ProbeMissed(f"The probe cannot be started: {error}.") from error
        self._answered = False
        return self._process

    async def _give_up(self, process: asyncio.subprocess.Process) -> None:
        self._process = None
        self._pause()
        await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(1.0):
                await process.wait()
        except TimeoutError:
            self._stuck.append(process)  # in uninterruptible sleep: it dies when the driver lets go of it

    def _pause(self) -> None:
        self._misses += 1
        pause = min(_LONGEST_PAUSE_SECONDS, 2.0 ** min(self._misses, 16))
        self._not_before = self._clock.monotonic() + pause

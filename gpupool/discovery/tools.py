"""Runs a program of the machine's own, such as nvidia-smi: with a deadline, a bounded answer, and no wait without end
for one that cannot even be killed."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gpupool

CODE_ROOT: Final = Path(gpupool.__file__).resolve().parent.parent
"""The folder that has gpupool in it: what Python programs of our own find their modules by."""

_MOST_BYTES: Final = 4 << 20
_KILLED_WITHIN_SECONDS: Final = 1.0
_LONGEST_NAME: Final = 200


class ToolFailed(Exception):
    """It gave no answer; the message is a sentence that says what was run."""


class ToolAway(ToolFailed):
    """It is not there, or hangs: asking again soon would help nobody, and may leave one more process in the kernel."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How it ended, and what it printed."""

    code: int
    text: str


async def ask(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    seconds: float,
    most_bytes: int = _MOST_BYTES,
    errors: bool = False,
    stuck: list[asyncio.subprocess.Process] | None = None,
) -> Answer:
    """What it prints, with `errors` on standard error too. `env` is its whole environment. Raises ToolFailed.

    One that misses its deadline is killed with what it has started; one that even then does not end is put into
    `stuck`.
    """
    name = " ".join(argv)[:_LONGEST_NAME]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if errors else asyncio.subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolAway(f"{name} cannot be run: it was not found.") from None
    except (OSError, ValueError) as error:
        raise ToolFailed(f"{name} cannot be run: {error}.") from error
    assert process.stdout is not None  # a pipe
    printed = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while chunk := await process.stdout.read(65_536):
                printed += chunk
                if len(printed) > most_bytes:
                    raise ToolFailed(f"{name} printed more than {most_bytes} bytes.")
            code = await process.wait()
    except TimeoutError:
        raise ToolAway(f"{name} did not answer within {seconds:g} s and was killed.") from None
    finally:
        await _end(process, stuck)
    return Answer(code, printed.decode(errors="replace"))


async def _end(process: asyncio.subprocess.Process, stuck: list[asyncio.subprocess.Process] | None) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_KILLED_WITHIN_SECONDS):
            await process.wait()
    except TimeoutError:  # in uninterruptible sleep: it ends when the driver lets go of it
        if stuck is not None:
            stuck.append(process)

"""Runs a program of the machine's own, such as nvidia-smi, with a deadline and a bounded answer."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Final

from gpupool.agent.processes import clean_environment

_MOST_SAID: Final = 300


class ToolFailed(Exception):
    """The message is a sentence that says what was run and what it answered."""


async def run_tool(command: Sequence[str], *, seconds: float) -> str:
    """What it says on standard output. Raises ToolFailed where it cannot be run, fails, or takes too long."""
    said = " ".join(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=clean_environment(os.environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ToolFailed(f"{said} cannot be run: {error}.") from error
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ToolFailed(f"{said} did not end within {seconds:g} s.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    text = output.decode(errors="replace").strip()
    if process.returncode != 0:
        last = text.splitlines()[-1][:_MOST_SAID] if text else "nothing"
        raise ToolFailed(f"{said} ended with code {process.returncode} and said: {last}")
    return text

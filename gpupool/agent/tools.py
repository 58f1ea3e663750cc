"""Runs a program that acts on the machine, such as `nvidia-smi --gpu-reset`: one that fails is an error."""

import os
from collections.abc import Sequence
from typing import Final

from gpupool.agent.processes import clean_environment
from gpupool.discovery.tools import ToolFailed, ask

_MOST_SAID: Final = 300


async def run_tool(command: Sequence[str], *, seconds: float) -> str:
    """What it says. Raises ToolFailed where it cannot be run, fails, or takes too long."""
    answer = await ask(command, env=clean_environment(os.environ), seconds=seconds, errors=True)
    text = answer.text.strip()
    if answer.code != 0:
        last = text.splitlines()[-1][:_MOST_SAID] if text else "nothing"
        raise ToolFailed(f"{' '.join(command)} ended with code {answer.code} and said: {last}")
    return text

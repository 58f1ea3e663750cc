"""The child that runs a vendor's tools: `python -m gpupool.discovery.tool_probe amd`.

Reads a line, writes one line of JSON, and so on until its input ends. It never waits for a tool: an answer holds what
has been printed since the last one, and what the driver's files say now. A tool that hangs is killed after its time;
while it cannot even be killed it is not started again.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from gpupool.discovery.base import DeviceProcess
from gpupool.discovery.drm_clients import clients, processes
from gpupool.discovery.drm_files import cards
from gpupool.discovery.parent import die_with_parent
from gpupool.discovery.tool_plans import PLANS, Command, Plan, follow_ups

_LONGEST_RUN_SECONDS: Final = 20.0
_FIRST_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02  # between two looks, while the first answer waits
_LARGEST_OUTPUT_BYTES: Final = 2 * 1024 * 1024  # the topology of eight GPUs in eight parts each is 1.2 MiB
_LARGEST_ANSWER_BYTES: Final = 3 * 1024 * 1024  # as JSON; the driver's files come on top
_LARGEST_FILE_BYTES: Final = 16 * 1024 * 1024  # of what a tool may write, to its output or anywhere
_LONGEST_REASON: Final = 300
_FAILED_PAUSE_SECONDS: Final = 60.0
_PROCESSES_EVERY_SECONDS: Final = 15.0  # every process's descriptors are looked through


class ToolAnswer(msgspec.Struct, kw_only=True):
    """What is new. `failures` say in the tool's own words why a command gave nothing."""

    outputs: dict[str, str] = {}
    failures: dict[str, str] = {}
    cards: list[dict[str, str]] = []
    processes: dict[str, tuple[DeviceProcess, ...]] | None = None  # by PCI address; None: not looked since the last
    tools: list[str] = []  # names of those that are installed


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    began: float
    killed: bool = False


class Runner:
    """Starts commands when they are due and collects what they printed."""

    def __init__(self, plan: Plan, vendor: str, *, env: Mapping[str, str], now: Callable[[], float]) -> None:
        self._plan = plan
        self._vendor = vendor
        self._env = dict(env)
        self._now = now
        self._runs: dict[str, _Run] = {}
        self._due: dict[str, float] = {}
        self._outputs: dict[str, str] = {}
        self._first = True
        self.beside_files = False  # whether the driver's files tell of its cards

    def answer(self) -> ToolAnswer:
        """What has been printed since the last answer; the first one waits for the tools a while."""
        answer = ToolAnswer()
        commands = self._plan.commands(self._env.get("PATH", ""))
        answer.tools = sorted({command.argv[0] for command in commands.values()})
        end = self._now() + (_FIRST_WAIT_SECONDS if self._first else 0.0)
        self._first = False
        while True:
            self._start({**commands, **follow_ups(self._vendor, self._outputs)})
            full = self._collect(answer)
            if full or self._now() >= end or not (self._runs or self._waiting(commands)):
                return answer
            time.sleep(_LOOK_SECONDS)

    def _waiting(self, commands: Mapping[str, Command]) -> bool:
        wanted = {**commands, **follow_ups(self._vendor, self._outputs)}
        return any(name not in self._due for name in wanted)

    def _start(self, commands: Mapping[str, Command]) -> None:
        for name, command in commands.items():
            if name in self._runs or self._now() < self._due.get(name, 0.0):
                continue
            self._due[name] = self._now() + command.pause(beside_files=self.beside_files)
            out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has ended
            try:
                process = subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=self._env,
                    preexec_fn=_confine,
                )
            except OSError:
                self._due[name] = self._now() + _FAILED_PAUSE_SECONDS
                out.close()
                err.close()
                continue
            self._runs[name] = _Run(process, out, err, self._now())

    def _collect(self, answer: ToolAnswer) -> bool:
        """Adds what ended runs printed; True where no more fits in, and the rest is told of with the next answer."""
        full = False
        size = sum(map(_encoded, answer.outputs.values()))
        for name, run in list(self._runs.items()):
            code = run.process.poll()
            if code is None:
                if self._now() - run.began > _LONGEST_RUN_SECONDS and not run.killed:
                    run.killed = True
                    run.process.kill()
                    answer.failures[name] = f"it did not end within {_LONGEST_RUN_SECONDS:g} s and was killed"
                continue
            text = _text(run.out)
            cost = _encoded(text)
            if answer.outputs and size + cost > _LARGEST_ANSWER_BYTES:
                full = True
                continue
            if cost > _LARGEST_ANSWER_BYTES or len(text) > _LARGEST_OUTPUT_BYTES:
                answer.failures[name] = f"it printed more than {_LARGEST_OUTPUT_BYTES} bytes of text"  # a part misleads
            elif code == 0 or text.strip():  # some versions end with an error and yet print what they know
                answer.outputs[name] = self._outputs[name] = text
                size += cost
            if code != 0 and not run.killed:
                said = _text(run.err).strip().splitlines()
                answer.failures.setdefault(name, (said[-1] if said else f"it ended with code {code}")[:_LONGEST_REASON])
                self._due[name] = max(self._due[name], self._now() + _FAILED_PAUSE_SECONDS)
            run.out.close()
            run.err.close()
            del self._runs[name]
        return full


def main() -> None:
    """Answer until the input ends."""
    die_with_parent()
    vendor = sys.argv[1]
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path("/")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may print into the answers
    plan = PLANS[vendor]
    runner = Runner(plan, vendor, env=os.environ, now=time.monotonic)
    look_at = 0.0
    for _ in sys.stdin:
        found = cards(root, plan.pci_vendor)
        runner.beside_files = bool(found)
        answer = runner.answer()
        answer.cards = found
        if answer.cards and time.monotonic() >= look_at:
            look_at = time.monotonic() + _PROCESSES_EVERY_SECONDS
            answer.processes = processes(*clients(root))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LARGEST_OUTPUT_BYTES + 1).decode(errors="replace")


def _encoded(text: str) -> int:
    return len(msgspec.json.encode(text))


def _confine() -> None:
    """A tool ends with the probe, and fills no disk."""
    die_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = _LARGEST_FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, _LARGEST_FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


if __name__ == "__main__":
    main()

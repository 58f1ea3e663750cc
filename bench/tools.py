"""The C tools: building them, running the upstream, sending load."""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

FOLDER: Final = Path(__file__).resolve().parent
BUILD: Final = FOLDER / "build"


class ToolError(Exception):
    """A tool is missing or failed; the message is one sentence."""


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of one measure, in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class LoadResult(msgspec.Struct, frozen=True):
    """What one run of the load generator saw."""

    requests: int
    ok: int
    failed: int
    failures: dict[str, int]
    statuses: dict[str, int]
    seconds: float
    connections_opened: int
    events: int
    reads: int
    bytes: int
    latency_ms: Spread | None
    ttft_ms: Spread | None
    gap_ms: Spread | None

    @property
    def complaint(self) -> str | None:
        """A sentence when anything failed."""
        if self.failed == 0:
            return None
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.failures.items() if count)
        return f"{self.failed} of {self.requests} requests failed ({kinds}; statuses {self.statuses})"


def missing_parts() -> str | None:
    """Why nothing can be measured on this machine, in a sentence; None when it can."""
    if not Path("/proc/self/stat").exists():
        return "the load tools need Linux (epoll, /proc)"
    if shutil.which("gcc") is None or shutil.which("make") is None:
        return "gcc and make are needed to build the load tools"
    return None


def build() -> None:
    """Build what is not built. Raises ToolError with the compiler's last words."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # tests of two processes would run what the other is still writing
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-s", "-C", str(FOLDER)], capture_output=True, text=True, timeout=120, check=False
        )
    if made.returncode != 0:
        raise ToolError(f"the load tools could not be built: {made.stderr.strip()[-2000:]}")


def pinned(command: Sequence[str], cpus: Sequence[int] | None) -> list[str]:
    """The command, bound to these cores where `taskset` is installed."""
    if not cpus or shutil.which("taskset") is None:
        return list(command)
    return ["taskset", "-c", ",".join(str(cpu) for cpu in cpus), *command]


class Upstream:
    """The fast stand-in for an engine. Use as a context manager; `counts` is there afterwards."""

    def __init__(self, *, model: str = "bench-model", cpus: Sequence[int] | None = None) -> None:
        self._command = pinned([str(BUILD / "upstream"), "--port", "0", "--model", model], cpus)
        self.port = 0
        self.counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ToolError("the upstream did not start")
        self.port = int(msgspec.json.decode(line)["port"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            rest, _ = self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            rest, _ = self._process.communicate()
        self.counts = msgspec.json.decode(rest, type=dict[str, int]) if rest.strip() else {}


def send_load(
    port: int,
    body: Mapping[str, object],
    *,
    requests: int,
    concurrency: int,
    rate: float | None = None,
    events: int | None = None,
    headers: Mapping[str, str] | None = None,
    limit_seconds: float = 60.0,
    cpus: Sequence[int] | None = None,
) -> LoadResult:
    """Send `requests` chats to 127.0.0.1; with `events` each answer must be a stream of so many.

    `rate` in requests a second sends at a steady pace instead of as fast as answers come.
    Raises ToolError when the generator itself fails or does not end within its bound.
    """
    with tempfile.NamedTemporaryFile(prefix="bench-body-", suffix=".json") as file:
        file.write(msgspec.json.encode(body))
        file.flush()
        options: dict[str, object] = {"port": port, "body": file.name, "requests": requests, "concurrency": concurrency}
        options |= {"limit-s": limit_seconds}
        if rate is not None:
            options["rate"] = rate
        if events is not None:
            options["events"] = events
        command = [str(BUILD / "loadgen")]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        for name, text in (headers or {}).items():
            command += ["--header", f"{name}: {text}"]
        try:
            run = subprocess.run(
                pinned(command, cpus),
                capture_output=True,
                timeout=limit_seconds + 15,
                check=False,
                env=dict(os.environ),
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"the load generator did not end within {limit_seconds + 15:.0f} s") from None
    if run.returncode != 0:
        raise ToolError(f"the load generator failed: {run.stderr.decode(errors='replace').strip()[-500:]}")
    return msgspec.json.decode(run.stdout, type=LoadResult)

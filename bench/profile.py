"""Where ours spends its CPU: py-spy's folded stacks, perf's flat list, whichever is installed."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.chats import chat
from bench.cpu import process_tree
from bench.plan import Plan
from bench.proxies import Proxy
from bench.tools import LoadResult, send_load

_SECONDS: Final = 6
_HERTZ: Final = 499
_FLAT_LINES: Final = 80


def profilers() -> list[str]:
    """Names of those installed."""
    return [name for name in ("py-spy", "perf") if shutil.which(name)]


def profile(proxy: Proxy, plan: Plan, folder: Path, *, rate: float, cpus: Sequence[int] | None) -> list[str]:
    """Record stretches of requests and of streams, once with each profiler; notes on what was written or not."""
    assert proxy.pid is not None
    found = profilers()
    if not found:
        return ["no profile: neither py-spy nor perf is installed"]
    folder.mkdir(parents=True, exist_ok=True)
    streamed = chat(events=plan.stream_events, pace_us=plan.stream_pace_us)
    stream_seconds = plan.stream_events * plan.stream_pace_us / 1e6
    rounds = max(1, round((_SECONDS + 2) / stream_seconds))
    concurrency = plan.stream_concurrency

    def requests() -> LoadResult:
        return send_load(
            proxy.port,
            chat(),
            requests=round(rate * (_SECONDS + 2)),
            concurrency=64,
            rate=rate,
            headers=proxy.headers,
            cpus=cpus,
        )

    def streams() -> LoadResult:
        return send_load(
            proxy.port,
            streamed,
            requests=concurrency * rounds,
            concurrency=concurrency,
            events=plan.stream_events,
            headers=proxy.headers,
            cpus=cpus,
        )

    notes: list[str] = []
    for what, load in (("requests", requests), ("streams", streams)):
        for profiler in found:
            note, seen = _record(profiler, proxy.pid, folder / f"profile-{what}", load)
            notes.append(note)
            settled = proxy.settled(seen.ok, seen.failed)
            if complaint := seen.complaint or settled:
                notes.append(f"profile of {what}: {complaint}")
    return notes


def _record(profiler: str, pid: int, base: Path, load: Callable[[], LoadResult]) -> tuple[str, LoadResult]:
    """Profile the tree of `pid` while `load` runs; a note and what the load saw."""
    if profiler == "py-spy":
        path = base.with_suffix(".folded")
        options = ["--format", "raw", "--subprocesses", "--rate", str(_HERTZ)]
        command = ["py-spy", "record", *options, "--duration", str(_SECONDS), "--pid", str(pid), "--output", str(path)]
    else:
        path = base.with_suffix(".txt")
        data = base.with_suffix(".perf")
        pids = ",".join(str(each) for each in process_tree(pid))
        options = ["--freq", str(_HERTZ), "--output", str(data), "--pid", pids]
        command = ["perf", "record", "--quiet", *options, "--", "sleep", str(_SECONDS)]
    recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seen = load()
    try:
        _, said = recorder.communicate(timeout=_SECONDS + 30)
    except subprocess.TimeoutExpired:
        recorder.kill()
        _, said = recorder.communicate()
    if recorder.returncode != 0:
        return f"{profiler} failed: {(said.strip().splitlines() or ['no word why'])[-1][:300]}", seen
    if profiler == "perf":
        path.write_text(flat(data))
        data.unlink()
    return f"profile written to {path}", seen


def flat(data: Path) -> str:
    """perf's list of symbols by share of CPU, the most first."""
    command = ["perf", "report", "--stdio", "--no-children", "--sort", "dso,symbol", "--input", str(data)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.rstrip() for line in made.stdout.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(lines[:_FLAT_LINES]) + "\n"

"""What is measured: no proxy at all, the peers that can be had, and ours (bench.gatehouse)."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.chats import chat
from bench.environments import environment
from bench.peers import Peer, Setting
from bench.tools import ToolError, pinned
from core.embedded.process import free_port, last_lines, spawn, stop

_READY_SECONDS: Final = 120.0  # LiteLLM imports for half a minute on a slow machine


@dataclass(frozen=True, slots=True)
class Proxy:
    """One thing under test: where it listens and which process tree it is."""

    name: str
    port: int
    pid: int | None  # None: no proxy, the upstream itself
    headers: Mapping[str, str] = field(default_factory=dict)
    settled: Callable[[int, int], str | None] = lambda answered, failed: None
    """Returns once its work after the last answer (a ledger) is done; a complaint when it was done wrongly."""
    helpers: Mapping[str, int] = field(default_factory=dict)
    """Processes beside it whose CPU is reported apart, by name."""
    extra_events: int = 0
    """Events that it adds to each stream."""
    version: str = ""


@contextlib.contextmanager
def running(
    peer: Peer, upstream_port: int, folder: Path, *, cpus: Sequence[int] | None, install: bool
) -> Iterator[Proxy]:
    """The peer in front of the upstream, once it has answered a chat.

    Raises ToolError in a sentence when it is not installed, cannot be, or does not answer.
    """
    home = environment(peer.name, peer.requirements, install=install) if peer.requirements else None
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(folder, free_port(), upstream_port, spare_port=free_port(), environment=home)
    launch = peer.launch(setting)
    log = folder / f"{peer.name}.log"
    environ = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **launch.environ}
    process = spawn(pinned(launch.command, cpus), log=log, environ=environ, cwd=folder)
    try:
        wait_until_answering(setting.port, launch.headers, process, log)
        yield Proxy(
            peer.name,
            setting.port,
            process.pid,
            headers=launch.headers,
            extra_events=peer.extra_events,
            version=" ".join(peer.requirements) or "of the system",
        )
    finally:
        stop(process, with_signal=signal.SIGTERM)


def answers(port: int, headers: Mapping[str, str]) -> bool:
    """Whether a chat is answered with 200: a router listens before it knows its engine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        body = json.dumps(chat())
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **headers})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_answering(
    port: int,
    headers: Mapping[str, str],
    process: "subprocess.Popen[bytes]",
    log: Path,
    *,
    seconds: float = _READY_SECONDS,
) -> None:
    """Raises ToolError with the end of the log when the process ends or the deadline passes first."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if answers(port, headers):
            return
        time.sleep(0.1)
    raise ToolError("it did not answer; the end of its log:\n" + "\n".join(last_lines(log)))

"""What the engines of a node share."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.clock import Clock
from gpupool.agent.isolation.launcher import NO_ISOLATION, Isolator
from gpupool.agent.launcher import PROCESSES, Launcher
from gpupool.agent.model_cache import ModelCache
from gpupool.agent.ports import PortRange
from gpupool.agent.state import StateDir
from gpupool.discovery.base import Noticed
from gpupool.engines.base import GivenDevice
from gpupool.policies.probe import SLOW_SECONDS


@dataclass(frozen=True, slots=True)
class Timings:
    """How long an engine is waited for, in seconds."""

    load_deadline: float = 600.0  # from the process's start to its health answer, where its row says nothing else
    load_poll: float = 0.5  # between two readings of an engine's load
    health_every: float = 2.0  # between the beginnings of two health probes
    health_deadline: float = SLOW_SECONDS  # an answer that takes longer is too slow
    hung_deadline: float = 120.0  # an engine that has not answered for so long is ended, and started again
    stop_grace: float = 10.0  # between SIGTERM and SIGKILL
    drain_notice: float = 1.5  # for the doors to learn that it drains, before "idle" is believed
    settled_after: float = 60.0  # ready for so long: earlier failures are forgotten
    sleep_deadline: float = 120.0  # from the word to sleep to its answer
    sleep_retry: float = 30.0  # before an engine that would not sleep is asked again
    return_deadline: float = 10.0  # from a process's end until its devices have its memory back


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the engines of a node share."""

    state: StateDir
    log_dir: Path
    ports: PortRange
    ports_in_use: Callable[[], Collection[int]]
    devices: Callable[[], Mapping[str, GivenDevice]]
    device_use: Callable[[str], Mapping[int, int | None] | None]  # bytes by process on a device; None: not told
    on_change: Callable[[], None]  # something changed that the web process should hear of soon
    on_end: Callable[[], None]  # a process ended, or its devices are free for others: reconcile
    clock: Clock
    timings: Timings
    cache: ModelCache
    isolator: Isolator = NO_ISOLATION
    launcher: Launcher = PROCESSES
    host: str = "127.0.0.1"  # what engines listen on; the agent itself reaches them by loopback
    notice: Callable[[Noticed], None] = lambda noticed: None  # tells the web process of something that happened
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # of weights that nobody waits for: one after the other

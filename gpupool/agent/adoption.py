"""Finding the engines that an earlier agent of this node left running: adopt them, or kill them.

An engine is ours when three things agree: its pid runs, the kernel says it started when our record says,
and the lease in its own environment is the record's.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gpupool.agent.engine import is_healthy
from gpupool.agent.processes import EngineProcess, kill_marked, kill_orphans, mark_of, marked_engines, start_mark
from gpupool.agent.slumber import sleeping
from gpupool.agent.state import InstanceRecord, StateDir
from gpupool.engines.registry import engines, get_engine
from gpupool.policies.node_reconcile import SERVING, Phase
from gpupool.policies.probe import SLOW_SECONDS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A record of an earlier agent; `process` is None when the engine ended meanwhile."""

    record: InstanceRecord
    process: EngineProcess | None


async def adopt_all(state: StateDir) -> list[Adopted]:
    """Match records with processes. Engines of ours that no record explains are killed."""
    running = {mark: pid for pid, mark in marked_engines(state.path)}
    found: list[Adopted] = []
    settling: list[Coroutine[Any, Any, None]] = []
    for record in state.load().values():
        mark = state.mark(record.row)
        process = _still_running(record, mark, running.pop(mark, None))
        if process is not None and record.row.engine in engines():
            settling.append(_settle_phase(record, process))
            found.append(Adopted(record, process))
        else:
            kill_marked(mark)  # children that outlived it, or an engine that this version no longer knows
            if record.pid is not None and record.log_path is not None:
                kill_orphans(record.pid, Path(record.log_path).parent)
            found.append(Adopted(_ended(record), None))
    for mark, pid in running.items():
        log.warning("agent.leftover_killed", pid=pid, mark=mark)
        kill_marked(mark)
    await asyncio.gather(*settling)  # together: one that hangs must not hold up the others
    return found


def _still_running(record: InstanceRecord, mark: str, marked_pid: int | None) -> EngineProcess | None:
    # Without a pid in the record, the earlier agent died between starting the engine and writing it down.
    pid = marked_pid if record.pid is None else record.pid
    started = None if pid is None else start_mark(pid)
    if pid is None or started is None or (record.start_mark is not None and started != record.start_mark):
        return None
    if mark_of(pid) not in (mark, None):  # None: not readable, so that pid and start time must do
        return None
    return EngineProcess(pid, started)


async def _settle_phase(record: InstanceRecord, process: EngineProcess) -> None:
    """A ready engine that still answers stays ready without a gap; anything else goes through loading again."""
    record.pid, record.start_mark, record.process_started_at = process.pid, process.mark, process.started_at
    record.reason = ""
    if record.slumber and await _sleeps(record):
        record.phase = Phase.ASLEEP
        return
    record.slumber = False
    answers = record.port is not None and await is_healthy(get_engine(record.row.engine), record.port)
    record.phase = Phase.READY if record.phase in SERVING | {Phase.ASLEEP} and answers else Phase.LOADING


async def _sleeps(record: InstanceRecord) -> bool:
    """Whether an engine that was told to sleep does; where it does not say, it is taken at that word.

    It gets no request then until it has been woken, which costs one that is awake nothing.
    """
    if record.port is None:
        return False
    told = await sleeping(get_engine(record.row.engine), record.port, deadline_seconds=SLOW_SECONDS)
    return told is not False


def _ended(record: InstanceRecord) -> InstanceRecord:
    if record.phase == Phase.DRAINING:
        record.phase = Phase.STOPPED
    elif record.phase == Phase.ASLEEP and record.pid is None:
        pass  # it had no process before either
    elif record.phase not in (Phase.STOPPED, Phase.FAILED):
        record.phase = Phase.STAGING
        record.reason = "The engine ended while no agent looked after it."
        record.restarts += record.pid is not None
    record.pid = record.start_mark = record.process_started_at = None
    record.slumber = False
    return record

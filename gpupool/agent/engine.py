"""One engine's life on this node: start, load, one warm-up token, serve, end."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpupool.agent import artefacts
from gpupool.agent.isolation.launcher import NO_ISOLATION, CannotIsolate, Command, Isolator
from gpupool.agent.listening import shim_path
from gpupool.agent.probe import ProbeFailed, ask
from gpupool.agent.processes import EngineProcess, clean_environment, start_engine
from gpupool.agent.state import MARK_VARIABLE
from gpupool.discovery.tools import CODE_ROOT
from gpupool.engines.base import (
    ArtefactRefused,
    Engine,
    EngineArgumentsRefused,
    EngineLaunch,
    EngineLoad,
    GivenDevice,
    LaunchPlan,
    LaunchRequest,
    TokenCounters,
)
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.policies.probe import SLOW_SECONDS, ProbeResult
from gpupool.stream.messages import DesiredInstance
from gpupool.weights.headers import HeaderRefused, check_headers
from gpupool.weights.verify import Mismatch, Unfinished, Verified, verify

_CLOCK_SLACK_SECONDS: Final = 0.01
_LOADING_POLL_SECONDS: Final = 0.1


class LaunchRefused(Exception):
    """The row cannot be launched on this node as it is; the message is a sentence for the operator.

    `retry` says whether trying again later can help although the row stays the same.
    """

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.retry = retry


class NotServing(Exception):
    """The engine did not come to serve; the message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row that was checked and whose artefact was found."""

    row: DesiredInstance
    engine: Engine
    model_path: Path
    devices: tuple[GivenDevice, ...]


def prepare(row: DesiredInstance, devices: Mapping[str, GivenDevice]) -> Prepared:
    """Check everything about a row that can be checked without starting it; reads the artefact's head.

    Raises LaunchRefused.
    """
    engine, launch = launchable(row)
    try:
        path = artefacts.locate(row.artefact_uri)
        launch.check_artefact(*artefacts.read_head(path, launch.artefact_head_bytes))
    except (EngineArgumentsRefused, artefacts.ArtefactUriRefused) as error:
        raise LaunchRefused(str(error.args[0]), retry=False) from error
    except (artefacts.ArtefactMissing, ArtefactRefused) as error:
        raise LaunchRefused(str(error), retry=True) from error
    except OSError as error:
        raise LaunchRefused(f"The artefact {row.artefact_uri} cannot be read: {error.strerror}.", retry=True) from error
    return Prepared(row, engine, path, given_to(row, devices))


def launchable(row: DesiredInstance) -> tuple[Engine, EngineLaunch]:
    """The row's engine, which the pool can start and which takes its arguments. Raises LaunchRefused."""
    try:
        engine = get_engine(row.engine)
        if engine.launch is None:
            raise LaunchRefused(f"{engine.title} cannot be started by the pool, only attached.", retry=False)
        if not isinstance(row.engine_args, dict):
            raise EngineArgumentsRefused("Engine arguments are a JSON object.")
        engine.launch.check_args(row.engine_args)
    except (UnknownEngine, EngineArgumentsRefused) as error:
        raise LaunchRefused(str(error.args[0]), retry=False) from error
    return engine, engine.launch


def given_to(row: DesiredInstance, devices: Mapping[str, GivenDevice]) -> tuple[GivenDevice, ...]:
    """The row's devices among the node's. Raises LaunchRefused where one is not there."""
    missing = [device for device in row.device_ids if device not in devices]
    if missing:
        raise LaunchRefused(f"This node has no device {missing[0]} now.", retry=True)
    return tuple(devices[device] for device in row.device_ids)


def check_weights(prepared: Prepared, stopped: Callable[[], bool] = lambda: False) -> None:
    """The checksum stage: whether the artefact is whole and was admitted as it is. Blocks. Raises LaunchRefused.

    It is given up soon after `stopped` says so.
    """
    row = prepared.row
    try:
        check_headers(prepared.model_path)
    except HeaderRefused as error:
        raise LaunchRefused(f"The checksum stage failed: {error}", retry=True) from error
    except OSError as error:
        raise LaunchRefused(f"The artefact {row.artefact_uri} cannot be read: {error.strerror}.", retry=True) from error
    if not row.manifest:
        return
    match verify(prepared.model_path, row.manifest, row.verify_seconds, stopped=stopped):
        case Mismatch(reason=reason) | Unfinished(reason=reason):
            raise LaunchRefused(f"The checksum stage failed: {reason}", retry=True)
        case Verified():
            return


def launch(
    prepared: Prepared,
    *,
    port: int,
    mark: str,
    log_path: Path,
    host: str = "127.0.0.1",
    isolator: Isolator = NO_ISOLATION,
    cache: Mapping[str, str] = MappingProxyType({}),
) -> tuple[LaunchPlan, EngineProcess]:
    """Start the process, listening on `host`; `cache` are the variables of its cache folder.

    Raises LaunchRefused when the machine does not let us.
    """
    row, room = prepared.row, prepared.engine.launch
    assert room is not None  # prepare refuses rows whose engine has none
    request = LaunchRequest(
        python=sys.executable,
        model_path=prepared.model_path,
        served_name=row.served_name,
        port=port,
        devices=prepared.devices,
        memory_bytes=row.memory_bytes,
        engine_args=row.engine_args,
        host=host,
    )
    try:
        plan = room.plan(request)
    except EngineArgumentsRefused as error:  # what only shows with the devices and the artefact at hand
        raise LaunchRefused(str(error.args[0]), retry=False) from error
    path = shim_path(str(CODE_ROOT)) if prepared.engine.torch else str(CODE_ROOT)
    env = clean_environment(os.environ) | {"PYTHONPATH": path}
    if not row.isolation.get("sandbox"):  # a sandbox does not show the folder
        env |= cache
    env |= dict(plan.env) | {MARK_VARIABLE: mark}
    command = Command(plan.argv, env, log_path.parent)
    try:
        if row.isolation:
            command = isolator.command(row, prepared.devices, prepared.model_path, command)
        return plan, start_engine(command.argv, env=command.env, log_path=log_path, cwd=command.cwd)
    except CannotIsolate as error:
        raise LaunchRefused(str(error), retry=error.retry) from error
    except OSError as error:
        raise LaunchRefused(f"The engine's process cannot be started: {error.strerror}.", retry=True) from error


async def until_loaded(engine: Engine, process: EngineProcess, port: int) -> None:
    """Return once the engine itself answers its health endpoint with 200.

    A stranger that answers on the port is not taken for it: the engine will find its port taken and exit.
    The caller bounds the wait and watches for the process's end.
    """
    while True:
        if await is_healthy(engine, port) and process.listens_on(port) is not False:
            return
        await asyncio.sleep(_LOADING_POLL_SECONDS)


async def warm_up(engine: Engine, port: int, served_name: str, *, deadline_seconds: float) -> None:
    """Let the engine decode one token, so that the first real request does not pay for it. Raises NotServing."""
    try:
        answer = await ask(port, engine.wire.warm_up(served_name), deadline_seconds=deadline_seconds)
    except ProbeFailed as error:
        raise NotServing(f"The warm-up token did not come: {error}.") from error
    if answer.status != 200:
        raise NotServing(f"The warm-up request was answered with status {answer.status}.")


async def is_healthy(engine: Engine, port: int) -> bool:
    """Whether the engine's health endpoint answers with 200 in time."""
    return await probe_health(engine, port) is ProbeResult.GOOD


async def probe_health(engine: Engine, port: int, *, deadline_seconds: float = SLOW_SECONDS) -> ProbeResult:
    """How the engine's health endpoint answers. It costs the engine nothing, and wakes none that sleeps."""
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    try:
        answer = await ask(port, engine.wire.health(), deadline_seconds=deadline_seconds)
    except ProbeFailed:
        # Given up at the deadline, it was not refused: it hangs.
        late = loop.time() - asked_at >= deadline_seconds - _CLOCK_SLACK_SECONDS
        return ProbeResult.SLOW if late else ProbeResult.FAILED
    return ProbeResult.GOOD if answer.status == 200 else ProbeResult.FAILED


async def read_load(engine: Engine, port: int, *, deadline_seconds: float) -> EngineLoad:
    """The engine's load now; all unknown when it does not say in time."""
    return (await read_metrics(engine, port, deadline_seconds=deadline_seconds))[0]


async def read_metrics(
    engine: Engine, port: int, *, deadline_seconds: float
) -> tuple[EngineLoad, TokenCounters | None]:
    """The engine's load now and what it has counted; unknown and None when it does not say in time."""
    request = engine.wire.metrics()
    if request is None:
        return EngineLoad(), None
    try:
        answer = await ask(port, request, deadline_seconds=deadline_seconds)
    except ProbeFailed:
        return EngineLoad(), None
    if answer.status != 200:
        return EngineLoad(), None
    text = answer.body.decode("utf-8", errors="replace")
    try:
        return engine.wire.parse_load(text), None if engine.counters is None else engine.counters(text)
    except Exception:  # noqa: BLE001  # a room that misreads metrics is no reason to end an engine that serves
        return EngineLoad(), None


async def terminate(process: EngineProcess, *, grace_seconds: float) -> None:
    """SIGTERM, then SIGKILL after `grace_seconds`; returns when the process has ended."""
    process.signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_seconds):
            await process.ended()
    except TimeoutError:
        process.signal(signal.SIGKILL)
        await process.ended()

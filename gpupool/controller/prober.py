"""Asks engines by their address whether they serve: attached ones always, others while their node is silent.

Only endpoints that cost nothing are asked, never a completion.
"""

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gpupool.agent.probe import Answer, ProbeFailed, ask
from gpupool.engines.base import WireRequest
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.policies.instance import State
from gpupool.policies.probe import SLOW_SECONDS, ProbeResult, slow_or

PROBE_DEADLINE_SECONDS: Final = 4.0
"""More than an answer may take to count as a good one, so that slow is told from silent."""

_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to ask. `authorization` is a secret: it is sent, never shown."""

    instance_id: UUID
    engine: str
    host: str
    port: int
    base_path: str
    served_name: str
    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext | None = None  # https
    state: State = State.WARMING  # as recorded when it was read
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`served` are the names the engine lists, made fit to be shown; None where it was not asked."""

    answered: bool
    reason: str
    served: tuple[str, ...] | None = None
    health_seconds: float = 0.0  # how long its health answer took

    @property
    def result(self) -> ProbeResult:
        """What it means for the engine's state. Silence is a failure; slow is only who does answer."""
        if not self.answered:
            return ProbeResult.FAILED
        return slow_or(ProbeResult.GOOD, seconds=self.health_seconds)


async def probe(target: Target, *, deadline_seconds: float = PROBE_DEADLINE_SECONDS) -> Verdict:
    """Is the engine healthy, and does it serve the model by the name we know? Never raises."""
    loop = asyncio.get_running_loop()
    try:
        wire = get_engine(target.engine).wire
        asked_at = loop.time()
        health = await _ask(target, wire.health(), deadline_seconds)
        took = loop.time() - asked_at
        if health.status != 200:
            return Verdict(False, _explain_status(health.status, wire.health().path))
        listing = wire.models()
        if listing is None:
            return Verdict(True, _explain_time(took), health_seconds=took)
        answer = await _ask(target, listing, deadline_seconds)
        if answer.status != 200:
            return Verdict(False, _explain_status(answer.status, listing.path))
        served = wire.parse_models(answer.body)
        names = tuple(_shown(name) for name in served)
    except UnknownEngine as error:  # a plugin that is not installed any more
        return Verdict(False, str(error))
    except ProbeFailed as error:
        return Verdict(False, f"It does not answer: {error}.")
    except ValueError as error:
        return Verdict(False, f"It answers with something else: {error}.")
    except Exception as error:  # noqa: BLE001  # a defect of one engine's room must not end the probes of all others
        told = _shown(f"{type(error).__name__}: {error}", 200)
        return Verdict(False, f"Our part for {_shown(target.engine)} cannot ask it: {told}.")
    if target.served_name not in served:
        listed = ", ".join(names[:5]) or "nothing"
        return Verdict(False, f"It serves {listed}, not {target.served_name}.", names)
    return Verdict(True, _explain_time(took), names, took)


async def probe_all(targets: Iterable[Target]) -> dict[UUID, Verdict]:
    """Every target, side by side."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(target: Target) -> tuple[UUID, Verdict]:
        async with gate:
            return target.instance_id, await probe(target)

    return dict(await asyncio.gather(*(one(target) for target in targets)))


async def _ask(target: Target, request: WireRequest, deadline_seconds: float) -> Answer:
    located = WireRequest(request.method, target.base_path + request.path, request.body)
    return await ask(
        target.port,
        located,
        deadline_seconds=deadline_seconds,
        host=target.host,
        authorization=target.authorization,
        tls=target.tls,
    )


def _shown(name: str, length: int = 80) -> str:
    """A name from a stranger, fit for a terminal, a page and a text column: bounded, without control characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name[:length])


def _explain_time(seconds: float) -> str:
    if seconds <= SLOW_SECONDS:
        return ""  # a state that explains itself needs no reason
    return f"Its health answer takes more than {SLOW_SECONDS:g} s."


def _explain_status(status: int, path: str) -> str:
    if status in (401, 403):
        return f"It refuses our key ({status} from {path}): set the variable named as its credential."
    return f"It answers {path} with {status}."

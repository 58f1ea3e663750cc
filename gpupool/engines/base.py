"""What an engine's room offers: translation only. No I/O, no clock, no retry in any of it.

A room may hold a `wire` (how to talk to the engine), a `load` (how to read its metrics) and, where the
pool can start the engine itself, a `launch`. Rooms do not know each other; `registry` knows them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

EngineArgs = Mapping[str, str | int | float | bool]


class EngineArgumentsRefused(ValueError):
    """The engine's room does not take these arguments; the message is a sentence for the operator."""


class ArtefactRefused(ValueError):
    """The file is not what this engine loads; the message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One HTTP request to an engine; `path` is appended to the endpoint's base path."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load as the engine itself reports it; None where it does not say (unknown is not zero)."""

    running: int | None = None  # requests being decoded
    waiting: int | None = None  # requests queued inside the engine
    kv_used: float | None = None  # share of the KV cache in use, 0 to 1


class EngineWire(Protocol):
    """How to talk to one kind of engine. The chat API itself passes through as bytes."""

    def health(self) -> WireRequest:
        """Answered with 200 once the engine can serve."""

    def models(self) -> WireRequest:
        """Answered with the names of the models that the engine serves; see `parse_models`."""

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        """Names from the answer to `models()`. Raises ValueError for an answer of another shape."""

    def metrics(self) -> WireRequest | None:
        """Answered with Prometheus text; None where the engine has none."""

    def warm_up(self, served_name: str) -> WireRequest:
        """The smallest request that decodes one token."""

    def parse_load(self, prometheus_text: str) -> EngineLoad:
        """Load from the engine's own metrics; unknown values and lines are passed over."""


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that an instance's lease gives it."""

    stable_id: str
    kind: str  # cpu, gpu
    vendor: str  # host, nvidia, ...


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything a room needs to say how its engine is started."""

    python: str  # the interpreter that engines written in Python run under
    model_path: Path
    served_name: str
    port: int
    devices: Sequence[GivenDevice]
    memory_bytes: int  # claimed by the lease
    engine_args: EngineArgs
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one engine process. `env` is added to a small clean environment, never to the agent's own."""

    argv: tuple[str, ...]
    port: int
    slots: int | None  # requests that it decodes at the same time
    env: Mapping[str, str] = field(default_factory=dict)


class EngineLaunch(Protocol):
    """How to start one kind of engine."""

    address_in_use_exit_code: int | None
    """Exit code by which the engine says that its port was taken; None where it has none of its own."""

    artefact_head_bytes: int
    """How much of the artefact's beginning `check_artefact` wants to see."""

    def check_args(self, engine_args: EngineArgs) -> None:
        """Raises EngineArgumentsRefused, naming the argument, for unknown or wrong ones."""

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        """Raises ArtefactRefused when a file that begins with `head` cannot be loaded."""

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Raises EngineArgumentsRefused like `check_args`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One room, as the registry lists it."""

    name: str
    title: str
    wire: EngineWire
    launch: EngineLaunch | None = None  # None: attach only


def device_environment(devices: Sequence[GivenDevice]) -> dict[str, str]:
    """Variables that show an engine exactly the devices of its lease.

    GPUs are named by UUID and ordered by PCI bus: CUDA's own default order (fastest first) differs from
    nvidia-smi's, so an index would name another card. With no GPU in the lease, all are hidden.
    """
    uuids = [device.stable_id for device in devices if device.kind == "gpu" and device.vendor == "nvidia"]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids)}

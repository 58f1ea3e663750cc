"""What a placement decision sees and what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gpupool.policies.isolation import Isolation
from gpupool.policies.lease import Portion
from gpupool.policies.nearest import Shape

DEFAULT_MEM_LIMIT_MB: Final = 32_768
"""Of each device, for a constraint that names a GPU's tag and no limit."""


@dataclass(frozen=True, slots=True)
class ClaimView:
    """One active claim on a device. `leaving`: its holder was told to go, so the bytes come back soon."""

    holder: UUID | None  # an instance; None: something else, which is never preempted
    memory_bytes: int
    share: float | None = None
    whole: bool = False
    tenant_id: UUID | None = None
    priority: int = 0
    since: float = 0.0  # seconds since the epoch
    leaving: bool = False
    mps_clients: int = 0


@dataclass(frozen=True, slots=True)
class RegionView:
    """Memory that work on a device can use; None where a size or latency is not known."""

    kind: str  # vram, pinned, uma, shared
    size_bytes: int | None
    latency_ns: float | None
    access: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What all devices of a node have in common."""

    node_id: UUID
    name: str = ""
    maintenance: bool = False
    capabilities: Mapping[str, object] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as the decision needs it; sizes in bytes, None where unknown."""

    device_id: UUID
    label: str
    kind: str
    memory_bytes: int | None
    claimed_bytes: int  # by all claims, listed in `claims` or not
    present: bool
    health: str
    node_reachable: bool
    node_cordoned: bool
    node: NodeFacts | None = None
    stable_id: str = ""
    vendor: str = ""
    name: str = ""
    allocatable: bool = True
    partition_of: str = ""
    isolated: str = ""  # why it was taken out of service; empty: it was not
    tags: frozenset[str] = frozenset()
    claims: tuple[ClaimView, ...] = ()
    regions: tuple[RegionView, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)  # kind of link by peer
    precisions: frozenset[str] = frozenset()  # empty: not known
    tensor_cores: bool | None = None
    peak_tflops: float | None = None
    used_bytes: int | None = None  # measured

    @property
    def node_id(self) -> UUID | None:
        return None if self.node is None else self.node.node_id

    def portions(self) -> tuple[Portion, ...]:
        """Claims as the rules of leases want them; what is claimed beyond those listed is one more."""
        listed = tuple(Portion(one.memory_bytes, one.share, one.whole) for one in self.claims)
        rest = self.claimed_bytes - sum(one.memory_bytes for one in self.claims)
        return (*listed, Portion(rest)) if rest > 0 else listed

    @property
    def free_bytes(self) -> int | None:
        """What can still be claimed."""
        return None if self.memory_bytes is None else self.memory_bytes - self.claimed_bytes

    @property
    def untouched(self) -> bool:
        return self.claimed_bytes == 0 and not self.claims


@dataclass(frozen=True, slots=True)
class Need:
    """What an instance asks of devices; `memory_bytes` of each."""

    kind: str
    memory_bytes: int
    devices: int = 1
    share: float | None = None
    whole: bool = False
    host_memory_bytes: int = 0
    topology: str = "preferred"
    strategy: str = "spread"
    gpu_tag: str = ""
    mem_limit_bytes: int | None = None
    priority: int = 0
    tenant_id: UUID | None = None
    isolation: Isolation = field(default_factory=Isolation)
    precision: str = ""
    shape: Shape | None = None
    model: str = ""  # its name at the door
    simulated: bool | None = None  # whether its devices shall be made up; None: it does not matter

    @property
    def portion(self) -> Portion:
        return Portion(self.memory_bytes, self.share, self.whole)

    def claim(self, holder: UUID | None = None, *, now: float = 0.0) -> ClaimView:
        """What each device holds once it is placed."""
        clients = self.isolation.mps_clients if self.isolation.mps else 0
        return ClaimView(
            holder, self.memory_bytes, self.share, self.whole, self.tenant_id, self.priority, now, mps_clients=clients
        )


@dataclass(frozen=True, slots=True)
class ReservationView:
    """What a tenant has a right to, of devices with a tag (empty: of any GPU)."""

    tenant_id: UUID
    tenant: str
    gpu_tag: str = ""
    devices: int = 0
    memory_bytes: int = 0
    lendable: bool = True


@dataclass(frozen=True, slots=True)
class QuotaView:
    """A standing limit on GPUs or their memory, and what those that it counts hold now."""

    quota_id: UUID
    metric: str  # gpus, gpu_memory
    amount: int
    held_devices: frozenset[UUID] = frozenset()
    held_bytes: int = 0
    tenants: frozenset[UUID] | None = None  # whose holdings it counts; None: everybody's
    model: str = ""  # of which model only; empty: of all

    def counts(self, need: Need) -> bool:
        """Whether what `need` asks for is counted."""
        of_tenant = self.tenants is None or need.tenant_id in self.tenants
        return of_tenant and self.model in ("", need.model)


@dataclass(frozen=True, slots=True)
class Fits:
    """A device that can take the instance; `left_bytes` stay claimable after it. Scores are 0 to 1 by scorer."""

    device_id: UUID
    left_bytes: int
    label: str = ""
    score: float = 0.0
    scores: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Unfit:
    """A device that cannot, and why, in a sentence's end; `code` names the filter."""

    device_id: UUID
    label: str
    reason: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """The choice, and why the others were not it. `borrowed_from`: tenants whose reserved devices it takes for now."""

    device_ids: tuple[UUID, ...]
    unfit: tuple[Unfit, ...]
    fits: tuple[Fits, ...] = ()
    nearness: float = 1.0  # of the devices to each other
    borrowed_from: tuple[str, ...] = ()

    @property
    def device_id(self) -> UUID:
        """The first of them."""
        return self.device_ids[0]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No device can take it; `reason` says it in a sentence. `waits_for`: where others are leaving for it."""

    reason: str
    unfit: tuple[Unfit, ...]
    fits: tuple[Fits, ...] = ()
    waits_for: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Preempt:
    """These instances have to go first; it can then be placed on `device_ids`."""

    instances: tuple[UUID, ...]
    device_ids: tuple[UUID, ...]
    reason: str
    unfit: tuple[Unfit, ...] = ()


Placement = Placed | Unplaced | Preempt

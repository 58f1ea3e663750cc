"""What healing looks at, and what it may decide: plain data. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from gpupool.policies.findings import Event
from gpupool.policies.remedy import Remedy
from gpupool.policies.xid import Rule

_ONE: Mapping[Remedy, int] = dict.fromkeys(Remedy, 1)


@dataclass(frozen=True, slots=True)
class Rules:
    """How much may be done, and how soon again. Times in seconds."""

    hardware: bool = False  # else hardware actions are written down, not done
    window: float = 3600.0  # in which repeats and budgets are counted
    repeats: Mapping[Remedy, int] = field(
        default_factory=lambda: {**_ONE, Remedy.CLEAR_CACHE: 3, Remedy.RESTART_APP: 3, Remedy.REBUILD: 3}
    )  # on one device, before the next rung
    soft_budget: int = 24  # restarts and rebuilds of one node in a window
    reset_budget: int = 4
    reboot_budget: int = 1
    settle: float = 30.0  # errors so soon after an action are its aftermath
    action_deadline: float = 900.0  # from being asked for to being told over
    brake_share: float = 0.5  # of the nodes, and two at least, in trouble within `brake_window`
    brake_window: float = 600.0
    probation: float = 600.0  # without a new error before healing gives back what it took out
    proven_probation: float = 60.0  # the same after a reset or restart that was done
    returns: int = 3  # in a day; after that only a person gives a device back


class Isolation(StrEnum):
    """Who took a device out."""

    NOT = ""
    HEALING = "healing"
    SUPPORT = "support"  # healing, and support has to look first
    PERSON = "person"


class Standing(StrEnum):
    """How an action stands; the words of HealingAction.state."""

    DRY_RUN = "dry_run"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"


OPEN = frozenset({Standing.PENDING, Standing.RUNNING})


@dataclass(frozen=True, slots=True)
class Occupant:
    """One of our instances on a device."""

    instance_id: UUID
    pid: int | None
    answers: bool  # it is ready or asleep


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device as it is now."""

    device_id: UUID
    node_id: UUID
    label: str
    healthy: bool = True  # present, and its driver says that it is well
    part_of: UUID | None = None  # the device that it is a part of
    shared: bool = False  # a part of a whole, a whole in parts, several holders, or processes that are not ours
    idle: bool = False  # nobody holds a claim, no process is on it
    isolation: Isolation = Isolation.NOT
    isolated_at: float | None = None
    rebooted: bool = False  # since it was taken out
    driver: str = ""  # the recovery action that its driver asks for now; empty: it does not say
    remap_pending: bool = False
    occupants: tuple[Occupant, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """An action of the last day."""

    action_id: UUID
    node_id: UUID
    device_id: UUID | None
    remedy: Remedy
    state: Standing
    at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class World:
    now: float
    events: Sequence[Event]  # not decided yet, the oldest first
    recent: Sequence[Event]  # decided ones that may belong to these
    devices: Sequence[DeviceState]  # all, so that a common failure is seen
    attempts: Sequence[Attempt]  # the oldest first
    overrides: Mapping[int, Rule] = field(default_factory=dict)
    mass_failure: bool = False  # most of the fleet is silent


@dataclass(frozen=True, slots=True)
class Decision:
    """Do this. `supersedes` are weaker actions that have not begun."""

    node_id: UUID
    device_id: UUID
    remedy: Remedy
    reason: str
    events: tuple[UUID, ...] = ()
    instances: tuple[UUID, ...] = ()  # to be stopped; new ones are asked for by the controller
    dry_run: bool = False
    supersedes: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Noted:
    """Nothing is done about these events, and why."""

    events: tuple[UUID, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """Nothing is done about these events yet, and why."""

    events: tuple[UUID, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A device that healing took out is well again."""

    device_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    decisions: tuple[Decision, ...] = ()
    noted: tuple[Noted, ...] = ()
    held: tuple[Held, ...] = ()
    give_back: tuple[GiveBack, ...] = ()
    overdue: tuple[UUID, ...] = ()  # actions whose end nobody told in time: they failed
    braked: bool = False

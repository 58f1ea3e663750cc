"""What keeps an instance to itself: what a version asks for, what a node has, and why the two do not meet. Pure.

What is asked for and absent is refused, never left out: an instance that runs without its sandbox looks isolated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SANDBOXES: Final = ("bubblewrap", "gvisor")
CAPABILITIES: Final = (
    "cgroup", "bubblewrap", "gvisor", "mps", "mig", "cdi", "container_toolkit", "user_namespaces", "systemd",
)  # fmt: skip
"""What a node's capability record tells of, each as {"available": bool, "reason": sentence, ...}."""

OVERHEAD_SHARE: Final = 0.1
"""Of a claim of host memory: page tables and buffers, which no engine counts as its own."""
MOST_MPS_CLIENTS: Final = 48
"""Of one device, from Volta on. Source: NVIDIA's documentation of the Multi-Process Service."""
_MEMBERS: Final = ("sandbox", "cgroup", "cpu_cores", "mps", "mps_clients")
_TITLES: Final = {"bubblewrap": "bubblewrap", "gvisor": "gVisor", "cgroup": "control groups of version 2", "mps": "MPS"}


class IsolationRefused(ValueError):
    """A version cannot ask for this; the message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a version asks for."""

    sandbox: str = ""  # bubblewrap, gvisor; empty: none
    cgroup: bool = False  # its claim of host memory is a hard limit
    cpu_cores: float | None = None  # with cgroup: at most so much of the processors
    mps: bool = False  # its share of a device's compute and memory is a limit of MPS
    mps_clients: int = 1  # processes that use a device: MPS limits each by itself


@dataclass(frozen=True, slots=True)
class Claimed:
    """What an instance claims, as far as its isolation hangs on it."""

    on_nvidia: bool  # all of its GPUs are NVIDIA's
    gpus: int
    share: float | None
    host_bytes: int  # of the host's memory


@dataclass(frozen=True, slots=True)
class MpsLimits:
    """Of each client, which is a process that uses the device."""

    thread_percentage: int | None  # of the SMs; None: no limit
    memory_bytes: int  # on each device


def parse_isolation(asked: Mapping[str, Any]) -> Isolation:
    """Raises IsolationRefused, naming the member."""
    for name in asked:
        if name not in _MEMBERS:
            raise IsolationRefused(f"isolation has no member {name!r}; it has {', '.join(_MEMBERS)}.")
    sandbox = asked.get("sandbox") or ""
    if sandbox not in ("", *SANDBOXES):
        raise IsolationRefused(f"isolation.sandbox is one of {', '.join(SANDBOXES)}, or left out; not {sandbox!r}.")
    for name in ("cgroup", "mps"):
        if not isinstance(asked.get(name, False), bool):
            raise IsolationRefused(f"isolation.{name} is true or false.")
    cores, clients = asked.get("cpu_cores"), asked.get("mps_clients", 1)
    if cores is not None and (
        isinstance(cores, bool) or not isinstance(cores, int | float) or not 0.01 <= cores <= 4096
    ):
        raise IsolationRefused("isolation.cpu_cores is a number of processor cores, from 0.01.")
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= MOST_MPS_CLIENTS:
        raise IsolationRefused(
            f"isolation.mps_clients is a number of processes, 1 to {MOST_MPS_CLIENTS}: MPS has no more clients."
        )
    if cores is not None and not asked.get("cgroup"):
        raise IsolationRefused("isolation.cpu_cores is a limit of a control group: ask for cgroup too.")
    if "mps_clients" in asked and not asked.get("mps"):
        raise IsolationRefused("isolation.mps_clients says how many processes share the limit of MPS: ask for mps too.")
    return Isolation(
        sandbox=sandbox,
        cgroup=asked.get("cgroup", False),
        cpu_cores=None if cores is None else float(cores),
        mps=asked.get("mps", False),
        mps_clients=clients,
    )


def contradictions(asked: Isolation, claimed: Claimed) -> tuple[str, ...]:
    """Why no node could ever do it, in sentences; empty when nothing stands against it."""
    found = []
    if asked.mps and (not claimed.gpus or not claimed.on_nvidia):
        found.append("MPS shares NVIDIA's GPUs, and this instance has none, or others too.")
    if asked.mps and asked.sandbox == "gvisor":
        found.append("MPS is spoken to by a pipe in shared memory, which gVisor does not pass on.")
    if asked.cgroup and claimed.host_bytes <= 0:
        found.append("A control group limits what is claimed of the host's memory: give the version host_memory_bytes.")
    return tuple(found)


def refusals(asked: Isolation, capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Why this node cannot do it, in sentences; empty when it can."""
    wanted = []
    if asked.sandbox:
        wanted.append(asked.sandbox)
    if asked.cgroup:
        wanted.append("cgroup")
    if asked.mps:
        wanted.append("mps")
    return tuple(sentence for name in wanted if (sentence := _absent(name, capabilities)) is not None)


def _absent(name: str, capabilities: Mapping[str, Any]) -> str | None:
    entry = capabilities.get(name)
    if not isinstance(entry, Mapping):
        return f"It asks for {_TITLES[name]}, and its node has not said whether it has that."
    if entry.get("available") is True:
        return None
    return f"It asks for {_TITLES[name]}, which its node lacks: {entry.get('reason') or 'it does not say why.'}"


def mps_limits(asked: Isolation, *, share: float | None, memory_bytes: int) -> MpsLimits:
    """A client's part of the claim. Limits are each client's own: several share what is claimed."""
    percentage = None if share is None else max(1, min(100, int(share * 100 / asked.mps_clients)))
    return MpsLimits(percentage, memory_bytes // asked.mps_clients)


def too_many_clients(asked: Isolation, *, processes: int) -> str | None:
    """Why an instance under MPS uses more than it claimed: each further process has the limit once more."""
    if not asked.mps or processes <= asked.mps_clients:
        return None
    return (
        f"{processes} of its processes use a device and each may take the whole limit of MPS: "
        f"isolation.mps_clients says {asked.mps_clients}."
    )


def host_limits(claimed_bytes: int) -> tuple[int, int]:
    """(hard limit, where the kernel begins to press) of a claim of host memory, in bytes.

    The hard limit is the claim itself, page tables included, so that the sum of all never exceeds the host; a tenth
    of it is left to them.
    """
    return claimed_bytes, int(claimed_bytes * (1 - OVERHEAD_SHARE))

"""What NVIDIA's driver said at one look, whichever way it was asked: by NVML, or by `nvidia-smi`.

Imported by the probe's child: it must not pull in more than messages. None is what the driver did not say.
"""

import msgspec


class NvLinkReading(msgspec.Struct, kw_only=True):
    """One NVLink of a GPU."""

    link: int
    active: bool | None = None
    version: int | None = None  # as NVML numbers them: 4 and 5 are NVLink 3, 6 is NVLink 4, 7 is NVLink 5
    speed_mbps: int | None = None  # megabytes a second, one direction
    remote_pci: str | None = None  # 0000:17:00.0
    remote_type: str = ""  # gpu, switch, ibmnpu; empty: unknown


class PeerReading(msgspec.Struct, kw_only=True):
    """The way over PCIe to another GPU."""

    index: int
    level: str  # PIX, PXB, PHB, NODE, SYS: the words of `nvidia-smi topo -m`


class ProcessReading(msgspec.Struct, kw_only=True):
    """A process with a context on a GPU."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None
    kind: str = ""  # C, G, C+G
    gpu_instance: int | None = None  # of a MIG instance


class GpuReading(msgspec.Struct, kw_only=True):
    """One GPU, or one MIG instance of it."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_address: str | None = None  # 0000:17:00.0
    memory_bytes: int | None = None  # all of it, what the driver keeps for itself included
    memory_used_bytes: int | None = None  # without what the driver keeps, where it says that apart
    memory_reserved_bytes: int | None = None
    memory_unsupported: bool = False  # it said that it has no such number: memory in common with the host
    bar1_bytes: int | None = None
    utilization: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    compute_capability: str | None = None
    architecture: str | None = None  # hopper
    compute_units: int | None = None  # streaming multiprocessors
    numa_node: int | None = None
    mig_enabled: bool | None = None
    parent_uuid: str | None = None  # of a MIG instance
    gpu_instance: int | None = None  # of a MIG instance
    recovery_action: str = ""  # none, reset, reboot, drain_p2p, drain_reset; empty: it does not say
    telemetry: dict[str, float] = {}  # by the names of discovery.base.Device.telemetry
    facts: dict[str, str] = {}
    processes: list[ProcessReading] | None = None
    nvlinks: list[NvLinkReading] = []
    peers: list[PeerReading] = []
    trouble: str = ""  # what the driver said about a GPU that does not answer


class XidReading(msgspec.Struct, kw_only=True):
    """One event of the driver, XID or double bit error."""

    at: float  # seconds since the epoch
    kind: str  # xid, ecc
    code: int | None = None
    uuid: str | None = None
    pci_address: str | None = None
    gpu_instance: int | None = None


class NvmlReading(msgspec.Struct, kw_only=True):
    """One look. `failure` is the NVML error's name where there was nothing to look at."""

    gpus: list[GpuReading] = []
    driver_version: str | None = None
    cuda_version: str | None = None
    failure: str = ""
    events: list[XidReading] = []


RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_reset",
    5: "recover_imex",
    6: "reset",
    7: "reboot",
}
"""NVML_GPU_RECOVERY_ACTION_*."""


def short_address(bus_id: str) -> str | None:
    """NVML and nvidia-smi write eight digits of domain (00000000:17:00.0), the kernel four."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    if not rest:
        return None
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"  # of more than four where it is beyond 16 bits

"""What kernel messages say of GPUs and of memory: a second source beside the drivers, and the only one that tells
of the same error twice."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from typing import Final

from gpupool.discovery.base import Noticed
from gpupool.discovery.kernel_lines import LogLine, parse_line
from gpupool.discovery.tolerant import pci_address

_LONGEST_TEXT: Final = 2000
_PCI: Final = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?" + _PCI + r"\): (\d{1,9})(?:, (.*))?$", re.DOTALL)
_XID_PROCESS: Final = re.compile(r"^pid=('?<?\w+>?'?)(?:, name=([^,]*))?(?:, |$)")
_SXID: Final = re.compile(r"(?:nvidia-nvswitch\d+: )?SXid \((?:PCI:)?" + _PCI + r"\): (\d{1,9})(?:, (.*))?$", re.DOTALL)
_NVLINK: Final = re.compile(r"^(\S+)\s+(Fatal|Nonfatal)\s+XC\d+ i\d+ Link (-?\d+)")
_RECOVERY: Final = re.compile(r"recovery action changed from \w+ \(([^)]*)\) to \w+ \(([^)]*)\)")
_NVIDIA_NAMED: Final = re.compile(r"NVRM: GPU at PCI:" + _PCI + r": (GPU-[0-9a-fA-F-]{36})")
_NVIDIA_ADDRESS: Final = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?" + _PCI)
_PEERMEM: Final = re.compile(r"nvidia-peermem \S+ ERROR (.*)")

_AMD: Final = re.compile(r"\bamdgpu (?:" + _PCI + r")?|\[drm:amdgpu")
_AMD_HARDWARE_ERRORS: Final = re.compile(
    r"(\d+) (?:new )?((?:un)?correctable) hardware errors? detected in (?:total in )?(\w+)"
)
_AMD_RING: Final = re.compile(r"ring (\S+) timeout")
_AMD_RESET: Final = re.compile(r"GPU reset(?: begin|\(\d+\) (?:succeeded|failed)| end with ret = -?\d+|.*failed)")
_INTEL: Final = re.compile(r"\b(i915|xe) (?:" + _PCI + r")?:?")
_INTEL_TROUBLE: Final = re.compile(
    r"GPU HANG|Resetting (?:chip|\w+) for|Engine reset|Timedout job|engine reset|GT reset|declared device \S+ as wedged"
)
_PROCESS: Final = re.compile(r"\bin (\S+) \[(\d+)\]")

_KILLED: Final = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (\d+)(?:, UID \d+,)? ?\(?([^)]*)\)?")
_REAPED: Final = re.compile(r"oom_reaper: reaped process (\d+) \(([^)]*)\)")
_CHOICE: Final = re.compile(r"oom-kill:(constraint=.*)")
_CRASH: Final = re.compile(r"^(\S+)\[(\d+)\]: segfault .* in (lib(?:nccl|cuda|nvidia|amdhip|rccl|hsa|ze_)[^\[\s]*)")

RECOVERY_ACTIONS: Final = {
    "none": "none",
    "gpu reset required": "reset",
    "reset": "reset",
    "node reboot required": "reboot",
    "reboot": "reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_reset",
    "drain and reboot": "drain_reboot",
}
"""What a driver asks for in words, as Device.recovery_action says it."""


class KernelLog:
    """Reads line after line; remembers which UUID an address had, and which GPU a message of many lines is about."""

    def __init__(self, *, boot_time: float | None = None, zone: tzinfo = UTC) -> None:
        """`boot_time` is the epoch second at which the monotonic clock was 0, where it is known."""
        self._boot_time = boot_time
        self._zone = zone
        self._uuids: dict[str, str] = {}
        self._about = ""  # the PCI address that NVIDIA's driver spoke of last

    def feed(self, line: str, *, now: float) -> Noticed | None:
        """What one line says; None for most. `now` stands in for a time that the line does not tell."""
        parsed = parse_line(line, now=now, zone=self._zone)
        at = self._time(parsed, now)
        text = parsed.text
        if (named := _NVIDIA_NAMED.search(text)) is not None:
            self._uuids[pci_address(named[1])] = named[2]
        for read in _READERS:
            noticed = read(text, at)
            if noticed is not None:
                return self._with_device(noticed)
        if (address := _NVIDIA_ADDRESS.search(text)) is not None:
            self._about = pci_address(address[1])
        return None

    def feed_all(self, lines: Iterable[str], *, now: float) -> tuple[Noticed, ...]:
        """Everything that is noticed in the lines."""
        return tuple(noticed for line in lines if (noticed := self.feed(line, now=now)) is not None)

    def _time(self, line: LogLine, now: float) -> float:
        if line.wall_seconds is not None:
            return line.wall_seconds
        if line.monotonic_seconds is not None and self._boot_time is not None:
            return self._boot_time + line.monotonic_seconds
        return now

    def _with_device(self, noticed: Noticed) -> Noticed:
        address = noticed.pci_address
        if not address and noticed.kind == "lost" and noticed.text.startswith("NVRM"):
            address = self._about
        if address:
            self._about = address
        stable_id = self._uuids.get(address, "")
        if address == noticed.pci_address and not stable_id:
            return noticed
        return Noticed(
            source=noticed.source,
            kind=noticed.kind,
            at=noticed.at,
            stable_id=stable_id,
            pci_address=address,
            code=noticed.code,
            text=noticed.text,
            data=noticed.data,
        )


def _notice(kind: str, at: float, text: str, *, address: str = "", code: int | None = None, **data: str) -> Noticed:
    return Noticed(
        source="kernel_log",
        kind=kind,
        at=at,
        pci_address=pci_address(address),
        code=code,
        text=text[:_LONGEST_TEXT],
        data={key: value for key, value in data.items() if value},
    )


def _xid(text: str, at: float) -> Noticed | None:
    match = _XID.search(text)
    if match is None:
        return None
    address, code, rest = match[1], int(match[2]), (match[3] or "").strip()
    data: dict[str, str] = {}
    if (process := _XID_PROCESS.match(rest)) is not None:
        if process[1].isdigit():
            data["pid"] = process[1]
        name = (process[2] or "").strip()
        if name and name != "<unknown>":
            data["process"] = name
        rest = rest[process.end() :]
    if (nvlink := _NVLINK.match(rest)) is not None:
        data["unit"], data["severity"], data["nvlink"] = nvlink[1], nvlink[2].lower(), str(int(nvlink[3]))
    if (recovery := _RECOVERY.search(rest)) is not None:
        data["recovery_from"] = _recovery(recovery[1])
        data["recovery_action"] = _recovery(recovery[2])
    return _notice("xid", at, rest or f"Xid {code}", address=address, code=code, **data)


def _recovery(text: str) -> str:
    lowered = text.strip().lower()
    return RECOVERY_ACTIONS.get(lowered, lowered.replace(" ", "_"))


def _sxid(text: str, at: float) -> Noticed | None:
    match = _SXID.search(text)
    if match is None:
        return None
    return _notice("sxid", at, (match[3] or f"SXid {match[2]}").strip(), address=match[1], code=int(match[2]))


def _nvidia(text: str, at: float) -> Noticed | None:
    if "NVRM" in text and ("fallen off the bus" in text or "RmInitAdapter failed" in text):
        address = _NVIDIA_ADDRESS.search(text)
        return _notice("lost", at, text[text.index("NVRM") :], address="" if address is None else address[1])
    if (peermem := _PEERMEM.search(text)) is not None:
        return _notice("driver", at, f"nvidia-peermem: {peermem[1]}")
    return None


def _amd(text: str, at: float) -> Noticed | None:
    match = _AMD.search(text)
    if match is None:
        return None
    address = match[1] or ""
    if (errors := _AMD_HARDWARE_ERRORS.search(text)) is not None:
        count, severity, block = errors.groups()
        return _notice("ecc", at, text, address=address, count=count, severity=severity, block=block)
    if "lost from bus" in text or "Fatal error during GPU init" in text:
        return _notice("lost", at, text, address=address)
    if "bad page" in text:
        return _notice("remap", at, text, address=address)
    if (ring := _AMD_RING.search(text)) is not None:
        return _notice("hang", at, text, address=address, ring=ring[1])
    if _AMD_RESET.search(text) is not None:
        return _notice("reset", at, text, address=address)
    return None


def _intel(text: str, at: float) -> Noticed | None:
    match = _INTEL.search(text)
    if match is None or (trouble := _INTEL_TROUBLE.search(text)) is None:
        return None
    process = _PROCESS.search(text)
    name, pid = ("", "") if process is None else process.groups()
    kind = "lost" if "wedged" in trouble[0] else "reset" if "eset" in trouble[0] else "hang"
    return _notice(kind, at, text, address=match[2] or "", driver=match[1], process=name, pid=pid)


def _memory(text: str, at: float) -> Noticed | None:
    if (killed := _KILLED.search(text)) is not None:
        group = "yes" if "cgroup out of memory" in text else ""
        return _notice("memory", at, text, step="killed", pid=killed[1], process=killed[2], control_group_limit=group)
    if (reaped := _REAPED.search(text)) is not None:
        return _notice("memory", at, text, step="reaped", pid=reaped[1], process=reaped[2])
    if (choice := _CHOICE.search(text)) is not None:
        fields = dict(part.partition("=")[::2] for part in choice[1].split(","))
        return _notice(
            "memory",
            at,
            text,
            step="chosen",
            constraint=fields.get("constraint", ""),
            control_group=fields.get("oom_memcg", ""),
            process=fields.get("task", ""),
            pid=fields.get("pid", ""),
        )
    return None


def _crash(text: str, at: float) -> Noticed | None:
    match = _CRASH.search(text)
    if match is None:
        return None
    return _notice("crash", at, text, process=match[1], pid=match[2], library=match[3])


_READERS: Final[tuple[Callable[[str, float], Noticed | None], ...]] = (
    _xid, _sxid, _nvidia, _amd, _intel, _memory, _crash,
)  # fmt: skip

"""Errors that NVIDIA's fabric manager writes of its NVSwitches: a log of its own, beside the kernel's."""

import calendar
import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpupool.discovery.base import Inventory, Noticed
from gpupool.discovery.tolerant import pci_address, plain

LOG: Final = Path("var/log/fabricmanager.log")
_LINE: Final = re.compile(r"^\[([A-Z][a-z]{2} +\d{1,2} \d{4} \d\d:\d\d:\d\d)\] \[(\w+)\] \[tid \d+\] (.*)$")
_SWITCH: Final = re.compile(
    r"NVSwitch (?P<grade>non-fatal|fatal) error (?P<code>\d{1,9}).*?pci bus id (?P<pci>[0-9A-Fa-f:.]+)"
    r"(?:.*?port (?P<port>\d+))?",
    re.IGNORECASE,
)
_MOST_BYTES: Final = 1 << 20  # of new lines at one look


def errors(text: str) -> Iterator[Noticed]:
    """What went wrong, by the lines of a log. Its times are taken as UTC: it names no zone."""
    for line in plain(text).splitlines():
        match = _LINE.match(line)
        if match is None or match[2] not in ("ERROR", "FATAL", "CRITICAL"):
            continue
        try:
            at = float(calendar.timegm(time.strptime(" ".join(match[1].split()), "%b %d %Y %H:%M:%S")))
        except ValueError:
            continue  # no such day
        switch = _SWITCH.search(match[3])
        if switch is None:
            yield Noticed(source="fabric_manager", kind="driver", at=at, text=match[3])
            continue
        data = {"grade": switch["grade"].lower()}
        if switch["port"]:
            data["port"] = switch["port"]
        yield Noticed(
            source="fabric_manager",
            kind="sxid",
            at=at,
            pci_address=pci_address(switch["pci"]),
            code=int(switch["code"]),
            text=match[3],
            data=data,
        )


class FabricManagerLog:
    """Follows the log from where it ends when the agent starts; finds no devices."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path = root / LOG
        self._inode, self._offset = self._end()
        self._rest = b""

    async def probe(self) -> Inventory:
        inode, size = self._end()
        if inode != self._inode or size < self._offset:  # rotated, or cut
            self._inode, self._offset, self._rest = inode, 0, b""
        if size == self._offset:
            return Inventory()
        new = b""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(max(self._offset, size - _MOST_BYTES))
            new = file.read(_MOST_BYTES)
            self._offset = file.tell()
        whole, newline, self._rest = (self._rest + new).rpartition(b"\n")
        return Inventory(noticed=tuple(errors((whole + newline).decode(errors="replace"))))

    async def close(self) -> None:
        return None

    def _end(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

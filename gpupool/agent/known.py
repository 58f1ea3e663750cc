"""Devices that this node had at this boot, kept for the agent that is started next.

Where a driver hangs while an agent starts, its devices are unknown, as they are for an agent that saw them before:
they are not gone, and what runs on them goes on.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpupool.agent.state import read_file, replace_file
from gpupool.discovery.base import Device
from gpupool.discovery.reading import stale


class _Kept(msgspec.Struct, kw_only=True):
    boot_id: str
    by_source: dict[str, tuple[Device, ...]] = {}


class KnownDevices:
    """By the source that found them. Only what is true of a device that does not answer."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        """`path` is the file that keeps them."""
        self._path = path
        self._kept = _Kept(boot_id=boot_id)
        self._found: set[str] = set()  # sources that have found devices since this agent started

    def load(self) -> None:
        """Take up what an earlier agent of this boot left. A file that cannot be read is none."""
        kept = read_file(self._path, _Kept)
        if kept is not None and kept.boot_id == self._kept.boot_id:
            self._kept = kept

    def recall(self, source: str) -> tuple[Device, ...]:
        """What it found for an earlier agent; nothing once it has found devices for this one: it knows better."""
        return () if source in self._found else self._kept.by_source.get(source, ())

    def keep(self, source: str, devices: Sequence[Device]) -> None:
        """It has found these. Written only where they are others than before."""
        self._found.add(source)
        plain = tuple(stale(device, "unknown") for device in devices if device.kind != "cpu")
        if _what(plain) == _what(self._kept.by_source.get(source, ())):
            return
        self._kept.by_source[source] = plain
        with contextlib.suppress(OSError, ValueError, OverflowError):  # a full disk, odd values: the next knows less
            replace_file(self._path, msgspec.json.encode(self._kept))


def _what(devices: Sequence[Device]) -> set[tuple[object, ...]]:
    return {(each.stable_id, each.memory_bytes, each.allocatable, each.partition_of) for each in devices}

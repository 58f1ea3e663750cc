"""What this node can isolate instances by, as it was found the last time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpupool.agent.capabilities import read_capabilities, read_cdi_specs
from gpupool.discovery.base import Device

Read = Callable[[int | None], Awaitable[dict[str, Any]]]
"""Looks at the node; takes how many parts of divided NVIDIA GPUs there are, None without NVIDIA's driver."""


class Ability:
    """The capability record, kept up to date."""

    def __init__(self, read: Read | None = None, *, root: Path = Path("/")) -> None:
        self._read = read or (lambda parts: read_capabilities(root=root, mig_devices=parts))
        self._root = root
        self._record: dict[str, Any] = {}
        self._specs: list[dict[str, Any]] = []
        self._told: dict[str, Any] = {}

    @property
    def record(self) -> Mapping[str, Any]:
        return self._record

    @property
    def cdi_specs(self) -> Sequence[Mapping[str, Any]]:
        """Specifications of device nodes, as they were found."""
        return self._specs

    async def look(self, devices: Sequence[Device]) -> bool:
        """Look again; says whether anything is different."""
        nvidia = [device for device in devices if device.vendor == "nvidia" and device.kind == "gpu"]
        parts = sum(bool(device.partition_of) for device in nvidia) if nvidia else None
        before, self._record = self._record, await self._read(parts)
        self._specs = await asyncio.to_thread(read_cdi_specs, self._root)
        return self._record != before

    def told(self) -> dict[str, Any]:
        """The record, for a stream that begins."""
        self._told = self._record
        return self._record

    def told_if_new(self) -> dict[str, Any]:
        """The record where it is another than was told; empty where it is not."""
        return {} if self._record == self._told else self.told()

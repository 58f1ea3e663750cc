"""NVIDIA GPUs by `nvidia-smi`, for where NVML does not answer: another path to the library, no binding, an old one.

Each call is a process with a deadline that is killed when it misses it. A call costs the driver a second or so:
it is made every few seconds, and what it said last stands in between.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from core.clock import Clock
from gpupool.discovery.base import Inventory
from gpupool.discovery.host import host_id
from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading
from gpupool.discovery.nvidia_smi_links import add_links, parse_nvlink_status
from gpupool.discovery.nvidia_smi_report import ReportError, parse_xml
from gpupool.discovery.nvidia_smi_text import QUERY, Listed, parse_list, parse_query_gpu, parse_table
from gpupool.discovery.nvidia_smi_tree import LARGEST_REPORT_BYTES
from gpupool.discovery.nvidia_view import devices
from gpupool.discovery.reading import stale
from gpupool.discovery.tools import ToolAway, ToolFailed, ask
from gpupool.discovery.topology import matrix

_EVERY_SECONDS: Final = 10.0
_LINKS_EVERY_SECONDS: Final = 300.0
_AWAY_REST_SECONDS: Final = 60.0


class NvidiaSmiSource:
    """GPUs of one node, as nvidia-smi tells them."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        clock: Clock,
        root: Path = Path("/"),
        command: str = "nvidia-smi",
        deadline_seconds: float = 10.0,
    ) -> None:
        """`env` is the whole environment of the command."""
        self._env = dict(env)
        self._clock = clock
        self._root = root
        self._node_id = host_id(root)
        self._command = command
        self._deadline = deadline_seconds
        self._last = Inventory()
        self._next_at: float | None = None
        self._stuck: list[asyncio.subprocess.Process] = []
        self._links: tuple[float, str, str] | None = None  # (until when it stands, topo -m, nvlink -s)

    async def probe(self) -> Inventory:
        now = self._clock.monotonic()
        if self._next_at is not None and now < self._next_at:
            return self._last
        self._next_at = now + _EVERY_SECONDS
        try:
            reading = await self._read()
        except ToolFailed as error:
            if isinstance(error, ToolAway):
                self._next_at = now + _AWAY_REST_SECONDS
            unread = tuple(stale(known, "unknown") for known in self._last.devices)
            self._last = Inventory(unread, str(error))
            return self._last
        known = {each.index: each for each in self._last.devices if each.index is not None and not each.partition_of}
        found = tuple(devices(reading, node_id=self._node_id, root=self._root, known=known))
        told = tuple(replace(each, facts={**each.facts, "told_by": "nvidia-smi"}) for each in found)
        self._last = Inventory(told, "" if told else "nvidia-smi lists no GPU.")
        return self._last

    async def close(self) -> None:
        return None

    async def _read(self) -> NvmlReading:
        reading = await self._report()
        if any(gpu.parent_uuid for gpu in reading.gpus):
            _name_instances(reading.gpus, parse_list(await self._ask("-L")))
        if len(reading.gpus) > 1:
            with contextlib.suppress(ToolFailed):  # GPUs are worth having without the ways between them
                cells, status = await self._topology()
                add_links(reading.gpus, matrix(cells), parse_nvlink_status(status))
        return reading

    async def _report(self) -> NvmlReading:
        """The whole report, else the fields that matter, else the table for people."""
        try:
            return parse_xml(await self._ask("-q", "-x"))
        except ReportError:
            pass
        try:
            rows = parse_query_gpu(await self._ask(f"--query-gpu={QUERY}", "--format=csv"))
        except ToolAway:
            raise
        except ToolFailed:
            rows = NvmlReading()  # an old one does not know each of the fields
        if rows.gpus:
            return rows
        table = parse_table(await self._ask())
        with contextlib.suppress(ToolFailed):  # the table names none: without its UUID a GPU is known by its place
            wholes = {each.index: each for each in parse_list(await self._ask("-L")) if each.mig_index is None}
            for gpu in table.gpus:
                if (named := wholes.get(gpu.index)) is not None:
                    gpu.uuid, gpu.name = named.uuid, named.name
        return table

    async def _topology(self) -> tuple[str, str]:
        now = self._clock.monotonic()
        if self._links is None or now >= self._links[0]:
            cells = await self._ask("topo", "-m")
            try:
                status = await self._ask("nvlink", "-s")
            except ToolFailed:
                status = ""  # it fails where there are none
            self._links = (now + _LINKS_EVERY_SECONDS, cells, status)
        return self._links[1], self._links[2]

    async def _ask(self, *arguments: str) -> str:
        self._stuck = [process for process in self._stuck if process.returncode is None]
        if self._stuck:
            raise ToolAway(f"{self._command} hangs in the kernel and cannot even be killed: no other is started.")
        argv = (self._command, *arguments)
        return await run(argv, env=self._env, deadline_seconds=self._deadline, stuck=self._stuck)


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    deadline_seconds: float,
    stuck: list[asyncio.subprocess.Process] | None = None,
) -> str:
    """What it prints. Raises ToolFailed; one that misses its deadline and cannot be killed is put into `stuck`."""
    answer = await ask(argv, env=env, seconds=deadline_seconds, most_bytes=LARGEST_REPORT_BYTES, stuck=stuck)
    # It exits with 14 for a warning about an info ROM, and other codes beside a usable report.
    if not answer.text.strip() or "NVIDIA-SMI has failed" in answer.text:
        raise ToolFailed(f"{argv[0]} failed with code {answer.code}: {' '.join(answer.text.split())[:200]}")
    return answer.text


def _name_instances(gpus: Sequence[GpuReading], listed: Sequence[Listed]) -> None:
    """UUIDs and profiles of MIG instances: reports of older drivers leave them out, the list has them."""
    by_place = {(each.parent_uuid, each.mig_index): each for each in listed if each.mig_index is not None}
    for gpu in gpus:
        place = gpu.facts.get("mig_index", "")
        named = by_place.get((gpu.parent_uuid or "", int(place))) if place.isdecimal() else None
        if named is not None:
            gpu.uuid, gpu.name = gpu.uuid or named.uuid, named.name

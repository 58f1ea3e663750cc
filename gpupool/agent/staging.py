"""The weights of an instance without a process, kept in the page cache: a start from there reads no disk."""

import asyncio
import threading
from typing import Protocol

from gpupool.agent import page_cache
from gpupool.agent.artefacts import ArtefactMissing, ArtefactUriRefused, locate
from gpupool.agent.state import InstanceRecord
from gpupool.policies.node_reconcile import Phase


class Staged(Protocol):
    """What has no process."""

    record: InstanceRecord

    @property
    def phase(self) -> Phase: ...

    def remark(self, reason: str) -> None: ...


async def keep_at_hand(staged: Staged, turn: asyncio.Lock) -> None:
    """Read its artefact's files in, when it is its `turn`, and say how much of them is there."""
    try:
        path = await asyncio.to_thread(locate, staged.record.row.artefact_uri)
    except (ArtefactMissing, ArtefactUriRefused) as error:
        staged.remark(f"It has no process, and its weights are not here: {error}")
        return
    files = await asyncio.to_thread(page_cache.weight_files, path)
    ended = threading.Event()  # a thread does not end with who waits for it
    try:
        async with turn:
            await asyncio.to_thread(
                page_cache.read_in, files, stopped=lambda: ended.is_set() or staged.phase is not Phase.ASLEEP
            )
    finally:
        ended.set()
    share = await asyncio.to_thread(page_cache.cached_share, files)
    if staged.phase is Phase.ASLEEP:
        there = "are in the page cache" if share is None else f"are to {share:.0%} in the page cache"
        staged.remark(f"It has no process. Its weights {there}.")

"""The leader keeps the history of the devices' memory: a frame each five seconds, a sample of each device a minute."""

from datetime import datetime
from functools import partial
from typing import Final

import structlog
from django.db import Error

from core.clock import Clock
from gpupool.controller.looking import InThread, keep_looking
from gpupool.leases.fencing import Fence, Superseded
from gpupool.policies.memory_history import samples_of
from gpupool.policies.memory_wire import MemoryEncoder
from gpupool.reads.memory import read_tree
from gpupool.services.memory_history import record_frame, record_minute

logger = structlog.get_logger(__name__)

FRAME_SECONDS: Final = 5.0
FRAMES_OF_A_KEYFRAME: Final = 12
"""A minute of frames: what is read back is a keyframe and at most so many changes."""


class MemoryRecorder:
    """What one leader has recorded so far."""

    def __init__(self, fence: Fence | None) -> None:
        self._fence = fence
        self._encoder = MemoryEncoder()
        self._epoch = self._seq = 0
        self._left = 0  # frames until the next keyframe
        self._minute: datetime | None = None

    def record(self, now: datetime) -> None:
        """One frame, and at each new minute a sample. Raises Superseded."""
        tree = read_tree(now=now, fitted=False)
        left, self._left = self._left, 0  # after a failure a keyframe: what the encoder remembers may not be kept
        payload: bytes | None = None
        if left:
            self._seq += 1
            payload = self._encoder.delta(tree, epoch=self._epoch, seq=self._seq, at=now)
        whole = payload is None
        if payload is None:
            left, self._seq = FRAMES_OF_A_KEYFRAME, 1
            self._epoch = max(self._epoch + 1, int(now.timestamp()))  # unlike those of leaders before
            payload = self._encoder.keyframe(tree, epoch=self._epoch, seq=self._seq, at=now)
        record_frame(now, payload, whole=whole, fence=self._fence)
        self._left = left - 1
        minute = now.replace(second=0, microsecond=0)
        if minute != self._minute:
            record_minute(minute, samples_of(tree), fence=self._fence)
            self._minute = minute


async def keep_memory(fence: Fence, *, clock: Clock, in_thread: InThread, seconds: float = FRAME_SECONDS) -> None:
    """Until cancelled. Raises Superseded."""
    recorder = MemoryRecorder(fence)

    async def look() -> None:
        try:
            await in_thread(partial(recorder.record, clock.now()))
        except (Superseded, Error):
            raise
        except Exception as error:  # a history that is not kept must not end what keeps engines running
            logger.error("memory_not_recorded", exc_info=error)

    await keep_looking(look, event="memory_cannot_see", seconds=seconds)

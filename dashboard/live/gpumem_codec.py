"""The encoder of the channel `gpumem`; its bytes are `gpupool.policies.memory_wire`'s, and docs/wire.md says them."""

from datetime import datetime
from typing import Final

from gpupool.policies.memory_tree import MemoryTree
from gpupool.policies.memory_wire import MemoryEncoder

KEYFRAME_BYTES_PER_SECOND: Final = 40_000
"""A keyframe of 100 GPUs is smaller, and comes at once; one of a thousand each 5 seconds, beside 26 KB of deltas."""


class GpumemEncoder:
    """One of a watched scope: remembers what its viewers have."""

    whole: bool = False
    """Without a delta there are other nodes, and so another epoch."""

    def __init__(self) -> None:
        self._encoder = MemoryEncoder(bytes_per_second=KEYFRAME_BYTES_PER_SECOND)

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> bytes:
        """All of it."""
        return self._encoder.keyframe(_tree(state), epoch=epoch, seq=seq, at=at)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> bytes | None:
        """What has changed; None where the tree has other nodes now, and the last keyframe is long enough ago."""
        return self._encoder.delta(_tree(state), epoch=epoch, seq=seq, at=at)


def _tree(state: object) -> MemoryTree:
    assert isinstance(state, MemoryTree)
    return state

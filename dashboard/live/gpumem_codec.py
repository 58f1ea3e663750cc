"""The encoder of the channel `gpumem`; its bytes are `gpupool.policies.memory_wire`'s, and docs/wire.md says them."""

from datetime import datetime

from gpupool.policies.memory_tree import MemoryTree
from gpupool.policies.memory_wire import MemoryEncoder


class GpumemEncoder:
    """One of a watched scope: remembers what its viewers have."""

    whole: bool = False
    """Without a delta there are other nodes, and so another epoch."""

    def __init__(self) -> None:
        self._encoder = MemoryEncoder()

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> bytes:
        """All of it."""
        return self._encoder.keyframe(_tree(state), epoch=epoch, seq=seq, at=at)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> bytes | None:
        """What has changed; None where the tree has other nodes now."""
        return self._encoder.delta(_tree(state), epoch=epoch, seq=seq, at=at)


def _tree(state: object) -> MemoryTree:
    assert isinstance(state, MemoryTree)
    return state

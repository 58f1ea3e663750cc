"""What the OOM guard looks at: the engines of a node that run on devices."""

from collections.abc import Iterable

from gpupool.agent.guard import Guarded
from gpupool.agent.life import EngineLife
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.policies.node_reconcile import Phase

_SETTLED = frozenset({Phase.READY, Phase.UNKNOWN, Phase.DRAINING})


def guarded(lives: Iterable[EngineLife]) -> list[Guarded]:
    """Those of the engines that have a process and a device."""
    return [
        Guarded(
            instance_id=life.instance_id,
            device_ids=life.record.row.device_ids,
            lease_bytes=life.record.row.memory_bytes,
            priority=life.record.row.priority,
            pids=life.process.members(),
            serving=life.phase in _SETTLED,
            preallocates=_preallocates(life.record.row.engine),
            requests=life.record.slots or life.load.running or 1,
        )
        for life in lives
        if life.process is not None and life.record.row.device_ids
    ]


def _preallocates(engine: str) -> bool:
    """Whether it takes nearly all memory that it will ever use at its start, and says how it is divided."""
    try:
        return get_engine(engine).measured is not None
    except UnknownEngine:
        return False

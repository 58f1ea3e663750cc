"""Memory trees of a fleet that is made up, changing each second as the simulated fleet's do.

    python -m tests.dashboard.live.memory_examples --gpus 64 --seconds 60 --to frames.json

writes payloads of `gpumem.v1` (base64) for the browser's tests.
"""

import argparse
import base64
import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.policies.memory_tree import NOT_IN_USE, MemoryTree, TreeNode
from gpupool.simulation.traffic import Traffic

BEGAN: Final = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
_GPU_MIB: Final = 81_079
_TENANTS: Final = (
    "acme", "aurora", "borealis", "cobalt", "delta-labs", "ember", "fjord", "granite", "harbor", "indigo", "juniper",
    "kestrel",
)  # fmt: skip
_MODELS: Final = (
    ("llama-3.1-8b-instruct", 16_400), ("qwen2.5-7b-instruct", 15_300), ("mistral-7b-instruct", 14_700),
    ("bge-m3", 2_300), ("gemma-2-9b-it", 18_600), ("phi-4-mini", 7_800), ("qwen3-embedding-0.6b", 1_300),
)  # fmt: skip
_ENGINES: Final = ("vllm", "vllm", "vllm", "sglang", "tgi")


@dataclass
class _Engine:
    """One instance, and where its segments are."""

    first: int  # ordinal of its weights
    capacity: int
    activations: int
    traffic: Traffic
    node: int


class MovingFleet:
    """`gpus` GPUs, eight a node and about six instances each; `tree()` is what it is like after each `step()`."""

    def __init__(self, gpus: int = 64, *, seed: int = 1, adapters: float = 0.1) -> None:
        self._chance = random.Random(seed)
        self._nodes: list[TreeNode] = [(-1, "cluster", "cluster", "", {})]
        self._values: list[int] = []
        self._engines: list[_Engine] = []
        self._figures: dict[int, dict[str, float | None]] = {}
        self._seconds = 0.0
        self._gpus: list[tuple[int, range]] = []
        self._idle: set[int] = set()  # ordinals of segments that are not in use
        self._adapters = adapters
        for number in range((gpus + 7) // 8):
            name = f"sim-h100-{number + 1:02d}"
            node = self._add(0, "node", self._uuid(), name, {})
            for index in range(min(8, gpus - 8 * number)):
                self._gpu(node, name, index)

    @property
    def instances(self) -> int:
        return len(self._engines)

    def step(self, seconds: float = 1.0) -> None:
        """Time passes."""
        self._seconds += seconds
        for engine in self._engines:
            self._set(engine)

    def tree(self) -> MemoryTree:
        for node, segments in self._gpus:
            free = self._values[segments.stop - 1]
            self._figures[node] = {
                "reserved": _GPU_MIB - free,
                "used": sum(self._values[at] for at in segments if at not in self._idle),
                "schedulable": free,
            }
        return MemoryTree("cluster", "all", tuple(self._nodes), tuple(self._values), dict(self._figures))

    def _gpu(self, node: int, name: str, index: int) -> None:
        extra = {"size": _GPU_MIB, "health": "ok", "name": "NVIDIA H100 80GB HBM3", "index": index, "stale": False,
                 "sim": True}  # fmt: skip
        gpu = self._add(node, "gpu", self._uuid(), f"{name}/{index}", extra)
        first, left = len(self._values), _GPU_MIB - 400
        for slug in sorted(self._chance.sample(_TENANTS, 3)):
            tenant = self._add(gpu, "tenant", str(uuid.uuid5(uuid.NAMESPACE_DNS, slug)), slug, {"slug": slug})
            for _ in range(2):
                left -= self._instance(tenant, left)
        self._segment(gpu, "other", 400)
        self._segment(gpu, "free", left)
        self._gpus.append((gpu, range(first, len(self._values))))

    def _instance(self, tenant: int, left: int) -> int:
        model, weights = self._chance.choice(_MODELS)
        claimed = round(weights / 0.6)
        if claimed > left:
            model, weights = _MODELS[-1]
            claimed = round(weights / 0.6)
        if claimed > left:
            return 0
        extra = {"model": model, "version": "v1", "state": "ready", "engine": self._chance.choice(_ENGINES),
                 "claimed": claimed}  # fmt: skip
        node = self._add(tenant, "instance", self._uuid(), model, extra)
        first, activations = len(self._values), round(claimed * 0.03)
        lora = 160 if self._chance.random() < self._adapters else 0
        capacity = round(claimed * 0.35)
        self._segment(node, "weights", weights)
        self._segment(node, "kv_used", 0)
        self._segment(node, "kv_free", capacity)
        self._segment(node, "activations", activations)
        if lora:
            self._segment(node, "lora", min(lora, claimed - weights - capacity - activations))
        used = sum(self._values[first:])
        self._segment(node, "unused", claimed - used)
        traffic = Traffic(
            self._chance.uniform(0.15, 0.6), random.Random(self._chance.random()), clock=lambda: self._seconds
        )  # fmt: skip
        engine = _Engine(first, capacity, activations, traffic, node)
        self._engines.append(engine)
        for _ in range(40):
            traffic._step()
        self._set(engine)
        return claimed

    def _set(self, engine: _Engine) -> None:
        share = min(1.0, 0.9 * engine.traffic.now())
        used = round(engine.capacity * share)
        self._values[engine.first + 1] = used
        self._values[engine.first + 2] = engine.capacity - used
        self._figures[engine.node] = {"kv": round(share, 3)}

    def _segment(self, parent: int, segment: str, mib: int) -> None:
        self._add(parent, "segment", "", "", {"seg": segment})
        if segment in NOT_IN_USE:
            self._idle.add(len(self._values))
        self._values.append(mib)

    def _add(self, parent: int, kind: str, key: str, label: str, extra: dict[str, Any]) -> int:
        self._nodes.append((parent, kind, key, label, extra))
        return len(self._nodes) - 1

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))


def payloads(fleet: MovingFleet, seconds: int, *, keyframe_seconds: int = 30) -> Iterator[bytes]:
    """One a second: a keyframe, then deltas, and a keyframe anew each `keyframe_seconds`."""
    encoder = GpumemEncoder()
    for second in range(seconds):
        if second:
            fleet.step()
        pack = encoder.delta if second % keyframe_seconds else encoder.keyframe
        payload = pack(fleet.tree(), epoch=1, seq=second + 1, at=BEGAN + timedelta(seconds=second))
        assert payload is not None
        yield payload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    fleet = MovingFleet(asked.gpus)
    found = [base64.b64encode(payload).decode("ascii") for payload in payloads(fleet, asked.seconds)]
    asked.to.write_text(json.dumps(found))


if __name__ == "__main__":
    main()

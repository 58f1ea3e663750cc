"""Servers of the Open Inference Protocol (KServe, Triton, MLServer, OpenVINO, ...), as the registry lists them."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.kserve.wire import KserveWire

ROOM: Final = Engine(
    "kserve",
    "Open Inference Protocol server",
    KserveWire(),
    capabilities=frozenset({Capability.INFER}),
    translates=frozenset({Capability.INFER}),
    protocol="oip-v2",
    batching="server",
    grain="shared",
    logprobs=False,
)
"""Takes tensors and answers with tensors; text is none of its matters."""

"""vLLM, as the registry lists it."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.vllm.control import VllmControl
from gpupool.engines.vllm.generate import VllmGenerateWire
from gpupool.engines.vllm.wire import VllmWire

ROOM: Final = Engine(
    "vllm",
    "vLLM",
    VllmWire(),
    control=VllmControl(),
    capabilities=frozenset(
        {
            Capability.CHAT,
            Capability.COMPLETIONS,
            Capability.EMBEDDINGS,
            Capability.RERANK,
            Capability.TOKENIZE,
            Capability.LOAD,
            Capability.SLEEP,
            Capability.ADAPTERS,
        }
    ),
    versions=">=0.6.4",  # the first whose adapters can be loaded while it runs and that knows /rerank's siblings
)

GENERATE: Final = Engine(
    "vllm-generate",
    "vLLM (/generate)",
    VllmGenerateWire(),
    capabilities=frozenset({Capability.COMPLETIONS}),
    translates=frozenset({Capability.COMPLETIONS}),
    protocol="generate",
    versions=">=0.2",
)

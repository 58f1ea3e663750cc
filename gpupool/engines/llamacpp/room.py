"""llama.cpp's server, as the registry lists it."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.llamacpp.control import LlamaCppControl
from gpupool.engines.llamacpp.launch import LlamaCppLaunch, context_tokens
from gpupool.engines.llamacpp.load import parse_token_counters
from gpupool.engines.llamacpp.memory import parse_memory
from gpupool.engines.llamacpp.wire import LlamaCppWire

ROOM: Final = Engine(
    "llamacpp",
    "llama.cpp",
    LlamaCppWire(),
    LlamaCppLaunch(),
    LlamaCppControl(),
    capabilities=frozenset(
        {
            Capability.CHAT,
            Capability.COMPLETIONS,
            Capability.EMBEDDINGS,
            Capability.RERANK,
            Capability.TOKENIZE,
            Capability.LOAD,
            Capability.REQUEST_ADAPTERS,
            Capability.LAUNCH,
        }
    ),
    translates=frozenset({Capability.TOKENIZE}),
    counters=parse_token_counters,
    measured=parse_memory,
    context_tokens=context_tokens,
    batching="slots",
    grain="process",
    logprobs=True,
)

"""SGLang, as the registry lists it: by its OpenAI routes, and by its own `/generate`."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.sglang.control import SglangControl
from gpupool.engines.sglang.generate import SglangGenerateWire
from gpupool.engines.sglang.launch import SglangLaunch, adapter_rank, context_tokens, sleeps
from gpupool.engines.sglang.load import parse_token_counters
from gpupool.engines.sglang.memory import parse_memory
from gpupool.engines.sglang.wire import SglangWire

_CONTROLS: Final = frozenset({Capability.LOAD, Capability.SLEEP, Capability.ADAPTERS})

ROOM: Final = Engine(
    "sglang",
    "SGLang",
    SglangWire(),
    SglangLaunch(),
    control=SglangControl(),
    capabilities=_CONTROLS
    | {
        Capability.CHAT,
        Capability.COMPLETIONS,
        Capability.EMBEDDINGS,
        Capability.RERANK,
        Capability.TOKENIZE,
        Capability.LAUNCH,
    },
    translates=frozenset({Capability.RERANK}),
    context_tokens=context_tokens,
    adapter_rank=adapter_rank,
    chat_cap_member="max_completion_tokens",
    completion_max_default=16,
    versions=">=0.5",  # dynamic adapters, /tokenize (which knows messages since sglang#23981)
    counters=parse_token_counters,
    measured=parse_memory,
    sleeps=sleeps,
    extra_ports=1,
    device_seconds=600.0,  # graphs are captured and kernels compiled while it loads
    torch=True,
    batching="continuous",
    grain="process",
    logprobs=True,
)

GENERATE: Final = Engine(
    "sglang-generate",
    "SGLang (/generate)",
    SglangGenerateWire(),
    control=SglangControl(),
    capabilities=_CONTROLS | {Capability.COMPLETIONS},
    translates=frozenset({Capability.COMPLETIONS}),
    protocol="generate",
    completion_max_default=16,
    versions=">=0.4",
    batching="continuous",
    counters=parse_token_counters,
    measured=parse_memory,
)

"""vLLM, as the registry lists it."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.vllm.control import VllmControl
from gpupool.engines.vllm.generate import VllmGenerateWire
from gpupool.engines.vllm.launch import VllmLaunch, adapter_rank, context_tokens, sleeps
from gpupool.engines.vllm.load import parse_token_counters
from gpupool.engines.vllm.memory import parse_memory
from gpupool.engines.vllm.wire import VllmWire

ROOM: Final = Engine(
    "vllm",
    "vLLM",
    VllmWire(),
    VllmLaunch(),
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
            Capability.LAUNCH,
        }
    ),
    context_tokens=context_tokens,
    adapter_rank=adapter_rank,
    chat_cap_member="max_completion_tokens",
    completion_max_default=16,
    versions=">=0.10",  # /v1/rerank, the options it is started with
    counters=parse_token_counters,
    measured=parse_memory,
    sleeps=sleeps,
    extra_ports=8,
    device_seconds=600.0,  # graphs are captured and kernels compiled while it loads
    torch=True,
    batching="continuous",
    grain="process",
    logprobs=True,
)

GENERATE: Final = Engine(
    "vllm-generate",
    "vLLM (/generate)",
    VllmGenerateWire(),
    capabilities=frozenset({Capability.COMPLETIONS}),
    translates=frozenset({Capability.COMPLETIONS}),
    protocol="generate",
    completion_max_default=16,
    versions=">=0.2",
    batching="continuous",
)

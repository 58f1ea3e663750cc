"""Text Generation Inference, as the registry lists it: by its OpenAI routes, and by its own `/generate`."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.tgi.generate import TgiGenerateWire
from gpupool.engines.tgi.launch import TgiLaunch, context_tokens
from gpupool.engines.tgi.load import parse_token_counters
from gpupool.engines.tgi.wire import TgiWire

ROOM: Final = Engine(
    "tgi",
    "Text Generation Inference",
    TgiWire(),
    TgiLaunch(),
    capabilities=frozenset(
        {Capability.CHAT, Capability.COMPLETIONS, Capability.TOKENIZE, Capability.LOAD, Capability.LAUNCH}
    ),
    translates=frozenset({Capability.TOKENIZE}),
    context_tokens=context_tokens,
    versions=">=2.2",  # /v1/completions, /chat_tokenize
    counters=parse_token_counters,
    extra_ports=1,
    batching="continuous",
    grain="process",
    logprobs=True,
    device_seconds=600.0,  # graphs are captured while it loads
    torch=True,  # its shards; the router and the launcher do not listen, and are not signalled
)

GENERATE: Final = Engine(
    "tgi-generate",
    "Text Generation Inference (/generate)",
    TgiGenerateWire(),
    capabilities=frozenset({Capability.COMPLETIONS, Capability.LOAD}),
    translates=frozenset({Capability.COMPLETIONS}),
    protocol="generate",
    completion_max_default=16,
    versions=">=1.0",
    batching="continuous",
    counters=parse_token_counters,
)

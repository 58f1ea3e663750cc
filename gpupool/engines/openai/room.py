"""Any OpenAI-compatible server, as the registry lists it."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.openai.wire import OpenAIWire

ROOM: Final = Engine(
    "openai",
    "OpenAI-compatible server",
    OpenAIWire(),
    capabilities=frozenset({Capability.CHAT, Capability.COMPLETIONS, Capability.EMBEDDINGS}),
)

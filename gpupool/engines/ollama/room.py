"""Ollama, as the registry lists it."""

from typing import Final

from gpupool.engines.base import Capability, Engine
from gpupool.engines.ollama.wire import OllamaWire

_ASKED: Final = frozenset({Capability.CHAT, Capability.COMPLETIONS, Capability.EMBEDDINGS})

ROOM: Final = Engine(
    "ollama",
    "Ollama",
    OllamaWire(),
    capabilities=_ASKED,
    translates=_ASKED,
    protocol="ollama",
    versions=">=0.3",  # /api/embed, tools
    batching="slots",
    grain="shared",
    logprobs=False,  # its own words, to which it is spoken, have none
)

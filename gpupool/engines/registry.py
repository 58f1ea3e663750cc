"""The engines that the pool knows, by the name that versions and endpoints carry."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpupool.engines.base import Engine
from gpupool.engines.llamacpp.launch import LlamaCppLaunch
from gpupool.engines.llamacpp.wire import LlamaCppWire
from gpupool.engines.openai.wire import OpenAIWire
from gpupool.engines.vllm.wire import VllmWire

ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            Engine("llamacpp", "llama.cpp", LlamaCppWire(), LlamaCppLaunch()),
            Engine("vllm", "vLLM", VllmWire()),
            Engine("openai", "OpenAI-compatible server", OpenAIWire()),
        )
    }
)


class UnknownEngine(LookupError):
    """No room has this name; the message lists those that exist."""


def get_engine(name: str) -> Engine:
    """The engine called `name`. Raises UnknownEngine."""
    try:
        return ENGINES[name]
    except KeyError:
        raise UnknownEngine(f"There is no engine {name!r}; known are {', '.join(ENGINES)}.") from None

"""What a llama.cpp server can be asked besides answers: which LoRA adapters it was started with."""

import msgspec

from gpupool.engines.base import WireRequest
from gpupool.engines.translation import decode


class _Adapter(msgspec.Struct):
    id: int
    path: str


class LlamaCppControl:
    """Adapters are chosen by each request, by their number; none is loaded or unloaded while it runs."""

    def sleep(self, level: int) -> WireRequest | None:
        return None

    def wake(self) -> WireRequest | None:
        return None

    def is_sleeping(self) -> WireRequest | None:
        return None

    def parse_sleeping(self, body: bytes) -> bool:
        raise ValueError("llama.cpp does not sleep.")

    def load_adapter(self, name: str, path: str) -> WireRequest | None:
        return None

    def unload_adapter(self, name: str) -> WireRequest | None:
        return None

    def list_adapters(self) -> WireRequest | None:
        return WireRequest("GET", "/lora-adapters")

    def parse_adapters(self, body: bytes) -> tuple[str, ...]:
        """Their files, in the order of their numbers."""
        adapters = decode(body, list[_Adapter])
        return tuple(adapter.path for adapter in sorted(adapters, key=lambda adapter: adapter.id))

"""What an SGLang server can be asked besides answers.

Memory is given back by servers started with `--enable-memory-saver --enable-weights-cpu-backup`, adapters are
loaded by those started with `--enable-lora`.
"""

import msgspec

from gpupool.engines.base import WireRequest
from gpupool.engines.listing import parse_adapter_list


class SglangControl:
    """Memory occupation released and resumed."""

    def sleep(self, level: int) -> WireRequest | None:
        # Without the copy in host memory it would come back without weights and wait to be sent new ones.
        return WireRequest("POST", "/release_memory_occupation", b"{}") if level == 1 else None

    def wake(self) -> WireRequest | None:
        return WireRequest("POST", "/resume_memory_occupation", b"{}")

    def is_sleeping(self) -> WireRequest | None:
        return None

    def parse_sleeping(self, body: bytes) -> bool:
        raise ValueError("SGLang does not say whether it sleeps.")

    def load_adapter(self, name: str, path: str) -> WireRequest | None:
        body = msgspec.json.encode({"lora_name": name, "lora_path": path})
        return WireRequest("POST", "/load_lora_adapter", body)

    def unload_adapter(self, name: str) -> WireRequest | None:
        return WireRequest("POST", "/unload_lora_adapter", msgspec.json.encode({"lora_name": name}))

    def list_adapters(self) -> WireRequest | None:
        return WireRequest("GET", "/v1/models")

    def parse_adapters(self, body: bytes) -> tuple[str, ...]:
        return parse_adapter_list(body)

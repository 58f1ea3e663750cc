"""What a vLLM server can be asked besides answers.

Sleep, wake and is_sleeping are there when it runs with VLLM_SERVER_DEV_MODE=1 and `--enable-sleep-mode`; adapters
when it runs with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and `--enable-lora`.
"""

import msgspec

from gpupool.engines.base import WireRequest
from gpupool.engines.listing import parse_adapter_list


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class VllmControl:
    """`POST /sleep?level=`: 1 moves the weights to host memory, 2 drops them; both drop the KV cache."""

    def sleep(self, level: int) -> WireRequest | None:
        return WireRequest("POST", f"/sleep?level={level}")

    def wake(self) -> WireRequest | None:
        return WireRequest("POST", "/wake_up")

    def is_sleeping(self) -> WireRequest | None:
        return WireRequest("GET", "/is_sleeping")

    def parse_sleeping(self, body: bytes) -> bool:
        try:
            return msgspec.json.decode(body, type=_Sleeping).is_sleeping
        except msgspec.MsgspecError as error:
            raise ValueError(f"This does not say whether the engine sleeps: {error}.") from error

    def load_adapter(self, name: str, path: str) -> WireRequest | None:
        body = msgspec.json.encode({"lora_name": name, "lora_path": path})
        return WireRequest("POST", "/v1/load_lora_adapter", body)

    def unload_adapter(self, name: str) -> WireRequest | None:
        return WireRequest("POST", "/v1/unload_lora_adapter", msgspec.json.encode({"lora_name": name}))

    def list_adapters(self) -> WireRequest | None:
        return WireRequest("GET", "/v1/models")

    def parse_adapters(self, body: bytes) -> tuple[str, ...]:
        return parse_adapter_list(body)

"""The Open Inference Protocol, version 2, over HTTP with JSON.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md.
"""

from dataclasses import dataclass
from urllib.parse import quote

from gpupool.engines.base import CallNotSupported, EngineLoad, OpenAICall, Translation, WireRequest


def _model_path(served_name: str) -> str:
    return f"/v2/models/{quote(served_name, safe='')}"


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A call of the same protocol: only its address is the engine's own."""

    request: WireRequest

    def feed(self, data: bytes) -> bytes:
        """There are no streams."""
        raise ValueError("a stream of tensors")

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes:
        return body


class KserveWire:
    """`OpenAICall.path` is what follows the model's name in an address: `/infer`, `/versions/3/infer`."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/v2/health/ready")

    def models(self) -> WireRequest | None:
        return None  # a list of models is an extension that few servers have

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        raise ValueError("the protocol has no list of models")

    def metrics(self) -> WireRequest | None:
        return None

    def warm_up(self, served_name: str) -> WireRequest:
        # Nobody can guess a model's tensors; that it is ready is the most that can be asked of it.
        return WireRequest("GET", f"{_model_path(served_name)}/ready")

    def parse_load(self, text: str) -> EngineLoad:
        return EngineLoad()

    def translate(self, call: OpenAICall) -> Translation | None:
        if call.api != "infer":
            raise CallNotSupported("This engine takes tensors only.")
        return PassedOn(WireRequest("POST", _model_path(call.served_name) + call.path, call.body))

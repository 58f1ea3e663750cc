"""How to talk to an Ollama server in its own words, which say more than its OpenAI routes: keep_alive, options."""

from typing import Any

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, EngineLoad, OpenAICall, Translation, WireRequest
from gpupool.engines.frames import JsonLines
from gpupool.engines.ollama.chat import chat_request
from gpupool.engines.ollama.decode import OllamaDecoder
from gpupool.engines.ollama.embed import OllamaEmbed
from gpupool.engines.ollama.load import parse_names
from gpupool.engines.ollama.options import common_members, rest_of
from gpupool.engines.translation import NativeTranslation, chunks_for


class OllamaWire:
    """Neither `/api/version` nor `/api/tags` loads a model."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/api/version")

    def models(self) -> WireRequest | None:
        return WireRequest("GET", "/api/tags")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        return parse_names(body)

    def metrics(self) -> WireRequest | None:
        return None

    def warm_up(self, served_name: str) -> WireRequest:
        body = {
            "model": served_name,
            "prompt": "Hello",
            "stream": False,
            "options": {"num_predict": 1, "temperature": 0},
        }
        return WireRequest("POST", "/api/generate", msgspec.json.encode(body))

    def parse_load(self, text: str) -> EngineLoad:
        return EngineLoad()

    def translate(self, call: OpenAICall) -> Translation | None:
        match call.api:
            case "chat":
                request = chat_request(call)
            case "completions":
                request = _generate_request(call)
            case "embeddings":
                return OllamaEmbed(call)
            case _:
                raise CallNotSupported(f"Ollama cannot do {call.api}.")
        chunks = chunks_for(call)
        return NativeTranslation(request, JsonLines(), OllamaDecoder(chunks.identity.rpartition("-")[2]), chunks)


def _generate_request(call: OpenAICall) -> WireRequest:
    asked = Asked(call, "Ollama")
    body: dict[str, Any] = {"model": call.served_name, "prompt": asked.prompt(), "stream": call.stream}
    if "suffix" not in asked.left:
        body["raw"] = True  # a completion goes on with the text; without this it would be put into the chat template
    body |= common_members(asked)
    asked.only("echo", False)
    return WireRequest("POST", "/api/generate", msgspec.json.encode(body | rest_of(asked)))

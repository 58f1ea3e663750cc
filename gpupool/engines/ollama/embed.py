"""Embeddings of OpenAI's by Ollama's `/api/embed`."""

import base64
import struct
from typing import Any

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, OpenAICall, WireRequest
from gpupool.engines.ollama.options import rest_of
from gpupool.engines.translation import decode


class _Embedded(msgspec.Struct):
    embeddings: list[list[float]] | None = None
    prompt_eval_count: int | None = None
    error: str | None = None


class OllamaEmbed:
    """Vectors as numbers, or as OpenAI's clients ask by default: base64 of little-endian 32-bit floats."""

    def __init__(self, call: OpenAICall) -> None:
        asked = Asked(call, "Ollama")
        texts = asked.left.pop("input", None)
        if not isinstance(texts, str) and not (isinstance(texts, list) and all(isinstance(t, str) for t in texts)):
            raise CallNotSupported("Ollama makes embeddings of texts, not of token ids.")
        encoding = asked.text("encoding_format") or "float"
        if encoding not in ("float", "base64"):
            raise CallNotSupported("Ollama's embeddings come as float or base64.")
        self._base64 = encoding == "base64"
        self._model = call.served_name
        body = rest_of(asked) | {"model": call.served_name, "input": texts}
        self._request = WireRequest("POST", "/api/embed", msgspec.json.encode(body))

    @property
    def request(self) -> WireRequest:
        return self._request

    def feed(self, data: bytes) -> bytes:
        raise ValueError("embeddings are not streamed")

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes | WireRequest:
        answer = decode(body, _Embedded)
        if answer.error is not None:
            error = {"message": answer.error, "type": "server_error", "param": None, "code": 500}
            return msgspec.json.encode({"error": error})
        if answer.embeddings is None:
            raise ValueError("an answer without embeddings")
        data = [
            {"object": "embedding", "index": index, "embedding": self._vector(vector)}
            for index, vector in enumerate(answer.embeddings)
        ]
        told: dict[str, Any] = {"object": "list", "data": data, "model": self._model}
        if (count := answer.prompt_eval_count) is not None:
            told["usage"] = {"prompt_tokens": count, "total_tokens": count}
        return msgspec.json.encode(told)

    def _vector(self, vector: list[float]) -> list[float] | str:
        if not self._base64:
            return vector
        try:
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        except OverflowError as error:
            raise ValueError("a vector with a number that no 32-bit float holds") from error

"""Counting tokens with llama.cpp: `/tokenize` takes text, and `/apply-template` makes text of messages first."""

from typing import Final

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import OpenAICall, WireRequest
from gpupool.engines.tokens import tokenized
from gpupool.engines.translation import decode

_ENGINE: Final = "llama.cpp's /tokenize"


class _Templated(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class LlamaCppTokenize:
    """One step for a prompt, two for messages."""

    def __init__(self, call: OpenAICall) -> None:
        asked = Asked(call, _ENGINE)
        self._served_name = call.served_name
        self._templating = "messages" in asked.left
        # As when it answers: the template's text is without the token that begins all, which is put before it.
        special = asked.flag("add_special_tokens")
        self._special = True if special is None or self._templating else special
        if self._templating:
            # Whatever the template may use of the request (tools, chat_template_kwargs) goes with it.
            self._request = WireRequest("POST", "/apply-template", msgspec.json.encode(asked.left))
        else:
            self._request = self._tokenize(asked.prompt())

    @property
    def request(self) -> WireRequest:
        return self._request

    def feed(self, data: bytes) -> bytes:
        raise ValueError("token counts are not streamed")

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes | WireRequest:
        if self._templating:
            self._templating = False
            return self._tokenize(decode(body, _Templated).prompt)
        return tokenized(decode(body, _Tokens).tokens, served_name=self._served_name)

    def _tokenize(self, text: str) -> WireRequest:
        body = {"content": text, "add_special": self._special}
        return WireRequest("POST", "/tokenize", msgspec.json.encode(body))

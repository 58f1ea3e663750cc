"""The replay's side of HTTP: streamed chats over the relay's own upstream client."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from core.tls import client_context
from gateway.relay.response import UpstreamResponse
from gateway.relay.upstream import Origin, UpstreamClient, UpstreamLimits
from gateway.relay.upstream_errors import ConnectFailed, DeadlinePassed, UpstreamError
from gateway.replay.schedule import PlannedRequest
from gateway.replay.summary import Answered, Failed, Limited, Result, Unavailable

_CONNECT_SECONDS: Final = 5.0
_BODY_LIMIT_BYTES: Final = 1 << 20


class DoorError(Exception):
    """The door cannot be used at all; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests go and as whom."""

    origin: Origin
    host_header: str
    base_path: str
    key: str
    answer_seconds: float = 120.0  # longest wait for the next byte

    def head(self, method: str, path: str, length: int) -> bytes:
        lines = [
            f"{method} {self.base_path}{path} HTTP/1.1",
            f"host: {self.host_header}",
            f"authorization: Bearer {self.key}",
            "user-agent: gatehouse-replay",
            "accept: */*",
        ]
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {length}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def door_at(url: str, key: str) -> Door:
    """The door at a base address, with or without /v1. Raises DoorError for another kind of address."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise DoorError(f"{url} is not an address: it must look like http://127.0.0.1:8080")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise DoorError("the API key has characters that no key has: copy it again")
    tls = client_context() if parts.scheme == "https" else None
    origin = Origin(parts.hostname, port or (443 if tls else 80), tls)
    return Door(origin, parts.netloc.rpartition("@")[2], parts.path.rstrip("/").removesuffix("/v1"), key)


class DoorClient:
    """Talks to one door; belongs to one event loop."""

    def __init__(self, door: Door, *, connections: int) -> None:
        self._door = door
        self._client = UpstreamClient(UpstreamLimits(connections_per_origin=connections))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def models(self) -> list[str]:
        """The models that the key may use. Raises DoorError when the door is shut or refuses the key."""
        origin = self._door.origin
        try:
            response = await self._send(self._door.head("GET", "/v1/models", 0), b"")
            body = await _read_all(response, 10.0)
        except (ConnectFailed, DeadlinePassed):
            raise DoorError(
                f"nothing answers at {origin.host}:{origin.port}: is the gateway running (`make up`)?"
            ) from None
        except UpstreamError as error:
            raise DoorError(f"what answers at {origin.host}:{origin.port} is not a gateway: {error}") from None
        if response.status == 401:
            raise DoorError("the gateway refuses the API key (401): give a valid one in $GATEHOUSE_API_KEY or --key")
        if response.status != 200:
            raise DoorError(f"the gateway answered /v1/models with {response.status} {_error_code(body)}".rstrip())
        try:
            return [str(entry["id"]) for entry in msgspec.json.decode(body)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise DoorError(
                f"what answers at {origin.host}:{origin.port} does not list models as OpenAI does"
            ) from None

    async def chat(self, request: PlannedRequest, model: str) -> Result:
        """Send one streamed chat and read it to its end. Never raises for what the door does."""
        body = msgspec.json.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": request.prompt}],
                "max_tokens": request.max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        started = time.monotonic()
        try:
            response = await self._send(self._door.head("POST", "/v1/chat/completions", len(body)), body)
            try:
                if response.status != 200:
                    return _refusal(response.status, await _read_all(response, self._door.answer_seconds))
                return await self._read_stream(response, started)
            finally:
                response.close()
        except ConnectFailed:
            return Failed("connection refused")
        except DeadlinePassed:
            return Failed("no answer in time")
        except UpstreamError:
            return Failed("connection lost")

    async def _send(self, head: bytes, body: bytes) -> UpstreamResponse:
        return await self._client.request(
            self._door.origin,
            head,
            body,
            connect_seconds=_CONNECT_SECONDS,
            head_seconds=self._door.answer_seconds,
        )

    async def _read_stream(self, response: UpstreamResponse, started: float) -> Result:
        first: float | None = None
        usage: dict[str, Any] = {}
        rest = b""
        done = False
        while data := await response.read(self._door.answer_seconds):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    done = True
                    continue
                try:
                    event = msgspec.json.decode(payload)
                except msgspec.DecodeError:
                    return Failed("an event that is not JSON")
                if "error" in event:
                    return Failed(f"error in the stream: {_code_of(event['error'])}")
                usage = event.get("usage") or usage
                if first is None and _has_content(event):
                    first = time.monotonic() - started
        if not done:
            return Failed("the stream ended without [DONE]")
        return Answered(
            ttft_seconds=first,
            duration_seconds=time.monotonic() - started,
            input_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
        )


async def _read_all(response: UpstreamResponse, seconds: float) -> bytes:
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            while data := await response.read(seconds):
                parts.append(data)
                if sum(map(len, parts)) > _BODY_LIMIT_BYTES:
                    break
    except TimeoutError:
        pass
    finally:
        response.close()
    return b"".join(parts)


def _has_content(event: dict[str, Any]) -> bool:
    return any(
        any((choice.get("delta") or {}).get(k) for k in ("content", "reasoning_content"))
        for choice in event.get("choices") or ()
    )


def _code_of(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or "unnamed")
    return "unnamed"


def _error_code(body: bytes) -> str:
    try:
        return _code_of(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""


def _refusal(status: int, body: bytes) -> Result:
    code = _error_code(body)
    if status == 429:
        return Limited(code)
    if status == 503:
        return Unavailable(code)
    return Failed(f"{status} {code}".rstrip())

"""An engine double: answers like vLLM's server over HTTP, loads for some seconds, and fills a cache that is none.

It computes nothing. What it says are words in a circle, and every answer says that it is made up.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpupool.simulation.traffic import Traffic

_SENTENCE: Final = "This answer was made up by a simulated engine; no model has read the question."
WORDS: Final = tuple(_SENTENCE.split())
_LARGEST_BODY_BYTES: Final = 16 * 1024 * 1024
_BYTES_A_SECOND: Final = 5_000_000_000.0  # that a load reads
_SHORTEST_LOAD_SECONDS: Final = 1.0
_WEIGHTS_SHARE: Final = 0.6  # of what is claimed
_CACHE_SHARE: Final = 0.33
_ACTIVATIONS_SHARE: Final = 0.03
_TOKENS_A_SECOND: Final = 60.0
_CACHE_TOKENS: Final = 200_000
_ASLEEP_SHARE: Final = 0.03  # of what is claimed stays on the device


@dataclass(slots=True)
class _Work:
    """One request under way, in tokens."""

    prompt: int
    made: int = 0


class EngineDouble:
    """One engine. It lives in this very process, on a port of its own."""

    def __init__(
        self, *, served_name: str, memory_bytes: int, speed: float = 1.0, traffic: float = 0.0, seed: int = 0
    ) -> None:
        """`speed` makes its time pass faster; `traffic` (0 to 1) is how much imagined work it has beside real one."""
        self.served_name = served_name
        self._memory_bytes = memory_bytes
        self._speed = speed
        self._traffic = Traffic(traffic, random.Random(seed))  # noqa: S311  (nothing secret: a course of load)
        self._began = time.monotonic()
        self._load_seconds = max(_SHORTEST_LOAD_SECONDS, memory_bytes * _WEIGHTS_SHARE / _BYTES_A_SECOND) / speed
        self._asleep = False
        self._running = 0
        self._cached = 0  # tokens of requests under way
        self._input = self._output = 0
        self._server: asyncio.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.exit_code: int | None = None

    # Its life

    def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(128)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._serving = asyncio.create_task(self._serve(listening), name=f"double-{port}")

    def end(self, exit_code: int) -> None:
        """Stop answering at once."""
        if self.exit_code is None:
            self.exit_code = exit_code
            if self._serving is not None:
                self._serving.cancel()
            self._ended.set()

    async def ended(self) -> int:
        """Wait for the end; what it exited with."""
        await self._ended.wait()
        return self.exit_code or 0

    async def _serve(self, listening: socket.socket) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None  # asyncio runs this in one
            connections.add(task)
            try:
                await self._converse(reader, writer)
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, sock=listening)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in connections:
                task.cancel()

    # What it looks like from outside

    @property
    def loaded(self) -> bool:
        return time.monotonic() - self._began >= self._load_seconds

    @property
    def kv_used(self) -> float:
        """0 to 1: of real requests, and of imagined ones."""
        if self._asleep or not self.loaded:
            return 0.0
        return min(1.0, self._cached / _CACHE_TOKENS + 0.9 * self._traffic.now())

    @property
    def busy(self) -> float:
        """0 to 1: how much of its devices it uses."""
        if self._asleep or not self.loaded:
            return 0.0
        return min(1.0, 0.25 * self._running + self._traffic.now())

    @property
    def device_bytes(self) -> int:
        """What it has of each of its devices now."""
        if self._asleep:
            return int(self._memory_bytes * _ASLEEP_SHARE)
        if not self.loaded:
            return int(self._memory_bytes * _WEIGHTS_SHARE * (time.monotonic() - self._began) / self._load_seconds)
        # As vLLM, it takes its whole cache and its buffers at its start.
        return int(self._memory_bytes * (_WEIGHTS_SHARE + _CACHE_SHARE + _ACTIVATIONS_SHARE))

    @property
    def log(self) -> str:
        """What the engines that it may stand for log of their memory while they load."""
        gib, mib = self._memory_bytes / (1 << 30), self._memory_bytes / (1 << 20)
        weights, cache, graphs = _WEIGHTS_SHARE * gib, _CACHE_SHARE * gib, _ACTIVATIONS_SHARE * gib
        lines = (
            f"Model loading took {weights:.4f} GiB",
            f"Available KV cache memory: {cache:.4f} GiB",
            f"the rest of the memory: activation peak memory takes {graphs:.4f} GiB",
            f"Load weight end. mem usage={weights:.4f} GB",
            f"KV Cache is allocated. #tokens: {_CACHE_TOKENS}, KV size: {cache:.4f} GB",
            f"Capture cuda graph end. mem usage={graphs:.4f} GB",
            f"load_tensors: CUDA0 model buffer size = {_WEIGHTS_SHARE * mib:.2f} MiB",
            f"llama_kv_cache: CUDA0 KV buffer size = {_CACHE_SHARE * mib:.2f} MiB",
            f"llama_context: CUDA0 compute buffer size = {_ACTIVATIONS_SHARE * mib:.2f} MiB",
        )
        return "".join(f"(simulated) {line}\n" for line in lines)

    # HTTP

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target = head.split(" ", 2)[:2]
                headers = _headers(head)
                length = int(headers.get("content-length", "0"))
                if not 0 <= length <= _LARGEST_BODY_BYTES:
                    return
                body = await reader.readexactly(length)
                await self._answer(writer, method, target.partition("?")[0], body)
                if headers.get("connection", "").lower() == "close":
                    return

    async def _answer(self, writer: asyncio.StreamWriter, method: str, path: str, body: bytes) -> None:
        match method, path:
            case "GET", "/health":
                await _send(writer, 200 if self.loaded else 503, {})
            case "GET", "/metrics":
                await _send_text(writer, self._metrics())
            case "GET", "/v1/models":
                model = {"id": self.served_name, "object": "model", "created": 0, "owned_by": "simulated"}
                await _send(writer, 200, {"object": "list", "data": [model]})
            case "GET", "/is_sleeping":
                await _send(writer, 200, {"is_sleeping": self._asleep})
            case "POST", "/sleep":
                self._asleep = True
                await _send(writer, 200, {})
            case "POST", "/wake_up":
                await asyncio.sleep(self._load_seconds / 10)
                self._asleep = False
                await _send(writer, 200, {})
            case "POST", "/v1/load_lora_adapter" | "/v1/unload_lora_adapter":
                await _send(writer, 200, {})
            case "POST", "/tokenize":
                count = len(str(_parsed(body).get("prompt", "")).split())
                await _send(writer, 200, {"count": count, "tokens": list(range(count)), "max_model_len": 32_768})
            case "POST", "/v1/embeddings":
                await self._embed(writer, _parsed(body))
            case "POST", "/v1/chat/completions" | "/v1/completions" | "/invocations":
                await self._generate(writer, _parsed(body), chat=path.endswith("/chat/completions"))
            case _:
                await _send(writer, 404, {"error": {"message": "The simulated engine has no such address."}})

    async def _embed(self, writer: asyncio.StreamWriter, request: Mapping[str, Any]) -> None:
        given = request.get("input", "")
        texts = given if isinstance(given, list) else [given]
        tokens = sum(len(str(text).split()) or 1 for text in texts)
        self._input += tokens
        rows = [
            {"object": "embedding", "index": at, "embedding": [round(1 / (at + n + 1), 6) for n in range(8)]}
            for at in range(len(texts))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await _send(writer, 200, {"object": "list", "model": self.served_name, "data": rows, "usage": usage})

    async def _generate(self, writer: asyncio.StreamWriter, request: Mapping[str, Any], *, chat: bool) -> None:
        if not self.loaded or self._asleep:
            await _send(writer, 503, {"error": {"message": "The simulated engine is not loaded."}})
            return
        wanted = request.get("max_completion_tokens") or request.get("max_tokens") or len(WORDS)
        tokens = max(1, min(int(wanted), 4 * len(WORDS)))
        prompt = sum(len(str(message.get("content", "")).split()) for message in request.get("messages", ()))
        prompt = prompt or len(str(request.get("prompt", "")).split()) or 1
        work = _Work(prompt)
        self._running += 1
        self._cached += prompt
        self._input += prompt
        try:
            if request.get("stream"):
                await self._stream(writer, request, tokens, work, chat=chat)
                return
            for _ in range(tokens):
                await self._decode_one(work)
            await _send(writer, 200, self._whole(_text(tokens), tokens, prompt, chat=chat, cut=tokens < len(WORDS)))
        finally:
            self._running -= 1
            self._cached -= work.prompt + work.made

    async def _decode_one(self, work: _Work) -> None:
        await asyncio.sleep(1 / (_TOKENS_A_SECOND * self._speed))
        work.made += 1
        self._cached += 1
        self._output += 1

    async def _stream(
        self, writer: asyncio.StreamWriter, request: Mapping[str, Any], tokens: int, work: _Work, *, chat: bool
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for made in range(1, tokens + 1):
            await self._decode_one(work)
            word = WORDS[(made - 1) % len(WORDS)] + " "
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if made == tokens else None}
            if chat:
                role = {"role": "assistant"} if made == 1 else {}
                choice["delta"] = role | {"content": word}
            else:
                choice["text"] = word
            await _send_event(writer, self._frame([choice], chat=chat, streamed=True))
        if (request.get("stream_options") or {}).get("include_usage"):
            frame = self._frame([], chat=chat, streamed=True)
            await _send_event(writer, frame | {"usage": _usage(work.prompt, tokens)})
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    def _whole(self, text: str, tokens: int, prompt: int, *, chat: bool, cut: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if cut else "stop"}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._frame([choice], chat=chat, streamed=False) | {"usage": _usage(prompt, tokens)}

    def _frame(self, choices: list[dict[str, Any]], *, chat: bool, streamed: bool) -> dict[str, Any]:
        kind = "chat.completion" + (".chunk" if streamed else "") if chat else "text_completion"
        return {
            "id": "simulated", "object": kind, "created": int(time.time()), "model": self.served_name,
            "choices": choices,
        }  # fmt: skip

    def _metrics(self) -> str:
        """vLLM's names, and those of the other engines that a version may ask for."""
        running = self._running + round(8 * self._traffic.now()) if self.loaded and not self._asleep else 0
        lines = []
        for names, value in (
            (("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"), running),
            (("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"), 0),
            (("vllm:kv_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"), self.kv_used),
            (("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"), self._input),
            (("vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total"),
             self._output),
        ):  # fmt: skip
            lines += [f'{name}{{model_name="{self.served_name}",simulated="true"}} {value}' for name in names]
        blocks = _CACHE_TOKENS // 16
        lines.append(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",simulated="true"}} 1')
        return "\n".join(lines) + "\n"


def _usage(prompt: int, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _text(tokens: int) -> str:
    return " ".join(WORDS[at % len(WORDS)] for at in range(tokens))


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _headers(head: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in head.split("\r\n")[1:] if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _send(writer: asyncio.StreamWriter, status: int, answer: Mapping[str, Any]) -> None:
    body = msgspec.json.encode(answer)
    await _write(writer, status, "application/json", body)


async def _send_text(writer: asyncio.StreamWriter, text: str) -> None:
    await _write(writer, 200, "text/plain; version=0.0.4", text.encode())


async def _write(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    reason = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()


async def _send_event(writer: asyncio.StreamWriter, frame: Mapping[str, Any]) -> None:
    writer.write(_chunk(b"data: " + msgspec.json.encode(frame) + b"\n\n"))
    await writer.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)

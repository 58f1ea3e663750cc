"""A call in an engine's own words, put together from what differs between engines: frames and their decoder."""

from collections.abc import Sequence
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from core.ids import uuid7
from gpupool.engines.base import OpenAICall, WireRequest
from gpupool.engines.deltas import Chunks, Delta, Step
from gpupool.engines.frames import Frames

T = TypeVar("T")


class Decoder(Protocol):
    """What one engine's frames mean; made anew for each call. Raises ValueError for what is not its words."""

    def decode(self, frame: bytes) -> Sequence[Step]:
        """What one frame of a stream says."""

    def end(self) -> Sequence[Step]:
        """What the end of the stream itself says, where the engine has no other word for it."""

    def whole(self, body: bytes) -> Sequence[Step] | WireRequest:
        """What an answer that is no stream says, or what is to be asked next."""


class NativeTranslation:
    """A completion or chat by an engine that does not speak OpenAI's words."""

    __slots__ = ("_chunks", "_decoder", "_frames", "_over", "_request")

    def __init__(self, request: WireRequest, frames: Frames, decoder: Decoder, chunks: Chunks) -> None:
        self._request = request
        self._frames = frames
        self._decoder = decoder
        self._chunks = chunks
        self._over = False

    @property
    def request(self) -> WireRequest:
        return self._request

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for frame in self._frames.feed(data):
            if self._over:
                break
            self._tell(self._decoder.decode(frame), out)
        return b"".join(out)

    def end(self) -> bytes:
        out: list[bytes] = []
        for frame in [] if self._over else self._frames.rest():
            try:
                steps = self._decoder.decode(frame)
            except ValueError:
                return b""  # half a frame: the stream was cut, and nobody may think otherwise
            self._tell(steps, out)
        if not self._over:
            self._tell(self._decoder.end(), out)
        return b"".join(out)

    def whole(self, body: bytes) -> bytes | WireRequest:
        steps = self._decoder.whole(body)
        return steps if isinstance(steps, WireRequest) else self._chunks.whole(steps)

    def _tell(self, steps: Sequence[Step], out: list[bytes]) -> None:
        for step in steps:
            out.append(self._chunks.event(step))
            if not isinstance(step, Delta):
                self._over = True
                return


def chunks_for(call: OpenAICall, identity: UUID | None = None) -> Chunks:
    """The renderer of the call's answer. Its time of creation is that of `identity`, a UUIDv7."""
    identity = identity or uuid7()
    chat = call.api == "chat"
    return Chunks(
        chat=chat,
        model=call.served_name,
        identity=f"{'chatcmpl' if chat else 'cmpl'}-{identity.hex}",
        created=(identity.int >> 80) // 1000,
    )


def decode(data: bytes, kind: type[T]) -> T:
    """JSON as `kind`. Raises ValueError, unlike msgspec, whose errors are none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"this is not what the engine says elsewhere: {error}") from error

"""An answer that came encoded although nobody asked for it, read as if it had not."""

import asyncio
from typing import Final

from gateway.relay.encoding import EncodingError, inflater_for
from gateway.relay.response import Sink, UpstreamResponse
from gateway.relay.upstream_errors import BadResponse, UpstreamError


class InflatedResponse:
    """Stands in for `inner`; at most `limit` bytes come out. Raises BadResponse for an unknown encoding."""

    def __init__(self, inner: UpstreamResponse, limit: int) -> None:
        self.status: Final = inner.status
        self.content_type: Final = inner.content_type
        self.drained: Final = False  # only `read` finds out whether what is there is whole
        self._inner = inner
        try:
            self._inflater = inflater_for(inner.content_encoding, limit)
        except EncodingError as error:
            raise BadResponse(str(error)) from error

    @property
    def complete(self) -> bool:
        return self._inner.complete

    def header(self, name: bytes) -> bytes | None:
        return self._inner.header(name)

    async def read(self, seconds: float, *, soft: bool = False, sink: Sink | None = None) -> bytes | None:
        """As UpstreamResponse's, but hands nothing to a sink; BadResponse also for what is broken, cut short or too
        much.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            data = await self._inner.read(max(0.0, until - loop.time()), soft=soft)
            if self._inflater is None or data is None:
                return data
            try:
                if not data:
                    self._inflater.end()
                    return b""
                plain = self._inflater.feed(data)
            except EncodingError as error:
                raise BadResponse(str(error)) from error
            if plain:
                return plain

    def close(self) -> None:
        self._inner.close()

    def release(self, seconds: float) -> None:
        self._inner.release(seconds)

    def fail(self, error: UpstreamError) -> None:
        self._inner.fail(error)

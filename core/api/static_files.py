"""Scripts, styles and fonts, as WhiteNoise finds them; sent so that no server has to hold a large one whole."""

from collections.abc import AsyncIterator
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

PIECE_BYTES: Final = 256 * 1024
"""What is sent at once; smaller files go whole."""


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # it has no types
    """WhiteNoise answers with iterators that Django, under ASGI, reads to their end first, with a warning for each."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        """Called on a thread: WhiteNoise knows no other way. Ranges, variants and 304 are its own."""
        if not hasattr(request, "scope"):
            answer: HttpResponseBase = WhiteNoiseMiddleware.serve(static_file, request)
            return answer
        found = static_file.get_response(request.method, request.META)
        response = _body_of(found.file, status=int(found.status))
        del response["content-type"]
        for name, value in found.headers:
            response[name] = value
        return response


def _body_of(file: Any, *, status: int) -> HttpResponseBase:
    if file is None:  # HEAD, or nothing but a status
        return HttpResponse(status=status)
    first = file.read(PIECE_BYTES)
    if len(first) == PIECE_BYTES:
        return StreamingHttpResponse(_Pieces(first, file), status=status)
    file.close()
    return HttpResponse(first, status=status)


class _Pieces:
    """A file from its first piece on. Django closes it with the response, also where a client leaves in the middle."""

    def __init__(self, first: bytes, file: Any) -> None:
        self._first = first
        self._file = file

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece = self._first
        while piece:
            yield piece
            piece = await sync_to_async(self._file.read)(PIECE_BYTES)

    def close(self) -> None:
        self._file.close()

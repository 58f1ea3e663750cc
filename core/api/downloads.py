"""Downloads that are sent as they are made, by whichever server runs us."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse


def download(request: HttpRequest, name: str, content_type: str, chunks: Iterator[bytes]) -> Any:
    """A file called `name` of these chunks, never held whole: an error in the middle cuts it off."""
    # Django would read a synchronous iterator to its end before it sends anything under ASGI.
    content = _off_the_loop(chunks) if hasattr(request, "scope") else chunks
    response = StreamingHttpResponse(content, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response


async def _off_the_loop(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(chunks, None)

    while (chunk := await sync_to_async(following)()) is not None:
        yield chunk

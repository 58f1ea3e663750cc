"""Static files under ASGI: whole, in ranges, compressed, not at all; and nothing that Django would read first."""

import asyncio
import gzip
import warnings
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.test import Client
from pytest_django import Settings

from core.api.static_files import PIECE_BYTES

LARGE = Random(1).randbytes(2 * PIECE_BYTES + 10)
SMALL = b"body { color: red; }" * 50


@pytest.fixture
def files(tmp_path: Path, settings: Settings) -> Path:
    (tmp_path / "large.bin").write_bytes(LARGE)
    (tmp_path / "exact.bin").write_bytes(LARGE[:PIECE_BYTES])
    (tmp_path / "empty.css").write_bytes(b"")
    (tmp_path / "small.css").write_bytes(SMALL)
    (tmp_path / "small.css.gz").write_bytes(gzip.compress(SMALL))
    settings.WHITENOISE_ROOT = tmp_path
    settings.WHITENOISE_USE_FINDERS = False
    return tmp_path


@pytest.fixture
def asked(files: Path) -> Iterator[httpx.AsyncClient]:
    """A browser at Django under ASGI, where what Django would read first is a failure."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="StreamingHttpResponse must consume")
        app: Any = ASGIHandler()
        yield httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


@pytest.mark.parametrize(
    ("name", "body"),
    [("large.bin", LARGE), ("exact.bin", LARGE[:PIECE_BYTES]), ("small.css", SMALL), ("empty.css", b"")],
    ids=["large", "exact", "small", "empty"],
)
async def test_files_of_every_size_come_whole(asked: httpx.AsyncClient, name: str, body: bytes) -> None:
    answer = await asked.get(f"/{name}", headers={"accept-encoding": "identity"})
    assert (answer.status_code, answer.content) == (200, body)
    assert answer.headers["content-length"] == str(len(body))
    head = await asked.head(f"/{name}", headers={"accept-encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(body))
    assert head.headers["content-type"] == answer.headers["content-type"]


@pytest.mark.parametrize(
    ("asked_range", "status", "body"),
    [
        ("bytes=5-9", 206, LARGE[5:10]),
        (f"bytes=1-{PIECE_BYTES + 1}", 206, LARGE[1 : PIECE_BYTES + 2]),
        ("bytes=-7", 206, LARGE[-7:]),
        ("bytes=99999999-", 416, b""),
        ("lines=1-2", 200, LARGE),
    ],
    ids=["some", "two pieces", "last", "beyond", "of lines"],
)
async def test_ranges_are_answered(asked: httpx.AsyncClient, asked_range: str, status: int, body: bytes) -> None:
    answer = await asked.get("/large.bin", headers={"range": asked_range})
    assert (answer.status_code, answer.content) == (status, body)
    if status == 206:
        first = LARGE.index(body)
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(body) - 1}/{len(LARGE)}"


async def test_the_compressed_one_goes_to_whoever_takes_it_and_nothing_to_whoever_has_it(
    asked: httpx.AsyncClient,
) -> None:
    answer = await asked.get("/small.css", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(SMALL)
    assert answer.content == SMALL  # as the client unpacks it
    assert answer.headers["vary"] == "Accept-Encoding"
    for name, value in (
        ("if-none-match", answer.headers["etag"]),
        ("if-modified-since", answer.headers["last-modified"]),
    ):
        again = await asked.get("/small.css", headers={name: value})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-type" not in again.headers
    assert (await asked.post("/small.css")).status_code == 405


async def test_a_client_that_leaves_in_the_middle_leaves_no_file_open(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[FileIO] = []

    def remember(path: str, mode: str) -> FileIO:
        assert mode == "rb"
        opened.append(FileIO(path))
        return opened[-1]

    monkeypatch.setattr("whitenoise.responders.open", remember, raising=False)
    coming = iter([{"type": "http.request", "body": b"", "more_body": False}])
    left = asyncio.Event()

    async def receive() -> Any:
        if (message := next(coming, None)) is not None:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            left.set()
            await asyncio.Event().wait()  # until the answer is given up

    scope = {
        "type": "http", "method": "GET", "path": "/large.bin", "query_string": b"", "headers": [], "scheme": "http",
        "server": ("localhost", 80), "client": ("127.0.0.1", 1), "http_version": "1.1",
    }  # fmt: skip
    await ASGIHandler()(scope, receive, send)
    assert [one.closed for one in opened] == [True]


def test_a_server_that_is_not_asynchronous_gets_what_it_always_got(files: Path) -> None:
    answer = Client().get("/large.bin")
    assert b"".join(answer.streaming_content) == LARGE  # type: ignore[attr-defined]  # of a streaming response

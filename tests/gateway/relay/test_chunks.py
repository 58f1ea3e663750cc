"""Pieces of a chunked body that are handed on as they come, however the network cut them."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.connection import Connection, ConnectionLimits

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ODD = [b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"a\r\n"]
CHUNK = st.tuples(
    st.one_of(
        st.binary(min_size=1, max_size=40), st.sampled_from([b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"a\r\n"])
    ),
    st.sampled_from([b"", b"", b";x=y"]),
    st.booleans(),
)


class Pipe(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("closed")


@given(
    chunks=st.lists(CHUNK, min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    aligned=st.booleans(),
    trailer=st.sampled_from([b"", b"x: y\r\n"]),
)
def test_the_sink_gets_the_body(chunks: list[Any], sizes: list[int], aligned: bool, trailer: bytes) -> None:
    framed = [
        (b"%X" if upper else b"%x") % len(data) + extra + b"\r\n" + data + b"\r\n" for data, extra, upper in chunks
    ]
    last = b"0\r\n" + trailer + b"\r\n"
    together = 1 + sizes[0] % 4  # chunks in one read
    whole = [b"".join(framed[start : start + together]) for start in range(0, len(framed), together)]
    pieces = [*whole, last] if aligned else _cut(b"".join([*framed, last]), sizes)
    body, complete = asyncio.run(_carry(pieces))
    assert body == b"".join(data for data, _, _ in chunks)
    assert complete


def _frame(data: bytes, extra: bytes, *, upper: bool) -> bytes:
    return (b"%X" if upper else b"%x") % len(data) + extra + b"\r\n" + data + b"\r\n"


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return pieces


async def _carry(pieces: list[bytes]) -> tuple[bytes, bool]:
    freed: list[Connection] = []
    connection = Connection(
        asyncio.get_running_loop(), ConnectionLimits(), on_free=freed.append, on_closed=lambda _: None
    )
    connection.connection_made(Pipe())
    response = connection.start(b"GET / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(HEAD)
    got: list[bytes] = []

    def sink(data: bytes) -> float | None:
        got.append(data)
        return 1.0

    reading = asyncio.create_task(response.read(1.0, soft=True, sink=sink))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    while rest := await reading:  # what came together with the end is left to the reader
        got.append(rest)
        reading = asyncio.create_task(response.read(1.0))
    return b"".join(got), freed == [connection]

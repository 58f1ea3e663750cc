"""What counts as a page that was told everything."""

import asyncio
import json
import struct
import zlib

import pytest

from bench.sockets import Heard, NotMeasured, parser, watch


def delta(epoch: int, seq: int) -> bytes:
    return b"\x01\x01" + struct.pack("<IId", epoch, seq, 0.0)


def keyframe(epoch: int, seq: int) -> bytes:
    deflate = zlib.compressobj(wbits=-15)
    return b"\x01\x00" + deflate.compress(json.dumps({"epoch": epoch, "seq": seq}).encode()) + deflate.flush()


def text(epoch: int, seq: int) -> str:
    return json.dumps({"n": 1, "epoch": epoch, "seq": seq})


@pytest.mark.parametrize(
    ("frames", "missed"),
    [
        ([keyframe(7, 1), delta(7, 2), delta(7, 3)], 0),
        ([keyframe(7, 1), delta(7, 4)], 2),
        ([keyframe(7, 1), keyframe(7, 3)], 1),  # a client that is slow skips to it
        ([delta(7, 5), keyframe(8, 1), delta(8, 2)], 0),
        ([text(7, 1), text(7, 2), text(7, 4)], 1),
    ],
)
def test_frames_that_are_missing_are_counted(frames: list[str | bytes], missed: int) -> None:
    heard = Heard()
    for frame in frames:
        heard.take(frame)
    assert (heard.frames, heard.missed) == (len(frames), missed)


def test_a_page_got_all_when_it_heard_one_frame_a_period_to_the_end() -> None:
    heard = Heard()
    heard.take('{"n":1,"op":"subscribed","period":2.0}')
    for seq in range(1, 15):
        heard.take(text(1, seq))
    assert heard.got_all(30.0)
    assert not heard.got_all(32.0)
    heard.closed = True
    assert not heard.got_all(30.0)


async def test_a_page_that_cannot_watch_ends_the_measurement_with_a_reason() -> None:
    options = parser().parse_args(["--sockets", "2"])
    with pytest.raises(NotMeasured, match="2 of 2 sockets had no frame; one ended: "):
        await watch("ws://127.0.0.1:1", ["session=x"], options, asyncio.Event())

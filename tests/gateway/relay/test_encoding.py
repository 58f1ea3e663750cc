"""Encodings undone piece by piece, and bounded."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.encoding import EncodingError, InflatedTooLarge, Inflater, UnknownEncoding, inflater_for


def deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.shows("G18")
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [(b"gzip", gzip.compress), (b"X-GZIP ", gzip.compress), (b"deflate", zlib.compress), (b"deflate", deflate_raw)],
)
@given(data=st.binary(min_size=1, max_size=300), size=st.integers(1, 50))
def test_what_was_packed_comes_out_whatever_the_pieces(encoding: bytes, pack: object, data: bytes, size: int) -> None:
    packed = pack(data)  # type: ignore[operator]  # one of the functions above
    inflater = inflater_for(encoding, 1000)
    assert inflater is not None
    out = b"".join(inflater.feed(packed[start : start + size]) for start in range(0, len(packed), size))
    inflater.end()
    assert out == data


def test_members_follow_each_other() -> None:
    inflater = Inflater(deflate=False, limit=100)
    assert inflater.feed(gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"
    inflater.end()


@pytest.mark.shows("G19")
def test_a_bomb_is_stopped_at_the_bound() -> None:
    inflater = Inflater(deflate=False, limit=1000)
    with pytest.raises(InflatedTooLarge):
        inflater.feed(gzip.compress(b"\0" * 100_000_000))
    exactly = Inflater(deflate=False, limit=1000)
    assert len(exactly.feed(gzip.compress(b"\0" * 1000))) == 1000
    exactly.end()


def test_what_is_broken_or_cut_short_is_told() -> None:
    with pytest.raises(EncodingError):
        Inflater(deflate=False, limit=100).feed(b"no gzip")
    with pytest.raises(EncodingError):
        Inflater(deflate=True, limit=100).feed(b"\xff\xff no deflate")
    inflater = Inflater(deflate=False, limit=100)
    inflater.feed(gzip.compress(b"hello")[:-4])
    with pytest.raises(EncodingError):
        inflater.end()


def test_which_encodings_are_known() -> None:
    assert inflater_for(None, 1) is None
    assert inflater_for(b"identity", 1) is None
    with pytest.raises(UnknownEncoding):
        inflater_for(b"br", 1)

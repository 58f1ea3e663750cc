"""Content encodings, undone as bytes come, and never beyond a bound: a small body may blow up a thousandfold."""

import zlib
from typing import Final

_AUTO: Final = 32 + zlib.MAX_WBITS  # gzip or zlib, told apart by their header
_RAW: Final = -zlib.MAX_WBITS
_ZLIB_HEAD_BYTES: Final = 2


class EncodingError(ValueError):
    """The bytes are not what their encoding says, or the encoding is not known."""


class UnknownEncoding(EncodingError):
    """None that is undone here."""


class InflatedTooLarge(EncodingError):
    """More than the bound comes out."""


class Inflater:
    """Undoes gzip or deflate piece by piece; gives at most `limit` bytes altogether."""

    def __init__(self, *, deflate: bool, limit: int) -> None:
        self._left = limit
        self._head: bytes | None = b"" if deflate else None  # of a deflate whose kind is not known yet
        self._inner = zlib.decompressobj(_AUTO)
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        """What `data` gives. Raises EncodingError."""
        if self._head is not None:
            data = self._head + data
            if len(data) < _ZLIB_HEAD_BYTES:
                self._head = data
                return b""
            self._head = None
            if not _has_zlib_head(data):
                self._inner = zlib.decompressobj(_RAW)
        out: list[bytes] = []
        while data:
            if self._ended:  # a further gzip member
                self._inner = zlib.decompressobj(_AUTO)
                self._ended = False
            try:
                piece = self._inner.decompress(data, self._left + 1)
            except zlib.error as error:
                raise EncodingError(str(error)) from error
            self._left -= len(piece)
            if self._left < 0:
                raise InflatedTooLarge("more comes out than is accepted")
            out.append(piece)
            self._ended = self._inner.eof
            data = self._inner.unused_data if self._ended else b""
        return b"".join(out)

    def end(self) -> None:
        """No more comes. Raises EncodingError when the end is missing."""
        if not self._ended:
            raise EncodingError("the encoded bytes end too early")


def _has_zlib_head(data: bytes) -> bool:
    """RFC 1950: "deflate" means this format; some send the bare deflate of RFC 1951 under that name."""
    return data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0


def inflater_for(encoding: bytes | None, limit: int) -> Inflater | None:
    """What undoes a Content-Encoding; None where nothing is to be undone. Raises UnknownEncoding."""
    match (encoding or b"").strip().lower():
        case b"" | b"identity":
            return None
        case b"gzip" | b"x-gzip":
            return Inflater(deflate=False, limit=limit)
        case b"deflate":
            return Inflater(deflate=True, limit=limit)
        case other:
            raise UnknownEncoding(f"content encoding {other.decode('latin-1')!r} is not known")

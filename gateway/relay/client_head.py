"""What is read of a request's head besides what the parser reads: its target, and offers of another protocol."""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import httptools

OFFER: Final = b"x-offer"
"""What an Upgrade header is called once it has been made harmless."""

_KNOWN_URL_BYTES: Final = 128  # most requests have one of a few targets, and those are short
_upgrade_header = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def split_target(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, raw path and query of a request target. Raises httptools' error for one that is none."""
    return _split_known(url) if len(url) < _KNOWN_URL_BYTES else _split(url)


def _split(url: bytes) -> tuple[str, bytes, bytes]:
    parsed = httptools.parse_url(url)
    raw_path = parsed.path or b"/"
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, parsed.query or b""


_split_known = lru_cache(maxsize=256)(_split)


def without_upgrade(data: bytes) -> bytes:
    """`data` with an Upgrade header at its beginning made harmless.

    Some clients (Java's, curl --http2) offer h2c on a plain POST. The parser then takes the body for
    the other protocol's bytes; whoever does not upgrade has to read on as if nothing had been offered.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        head_end = len(data)
    return _upgrade_header.sub(b"\r\n%b:" % OFFER, data[:head_end]) + data[head_end:]

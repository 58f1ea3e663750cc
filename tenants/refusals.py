"""Counts of refused requests on their way to the database: plain structs, so that the relay can write them without one.

A process sends a batch every few seconds, numbered 1, 2, 3, ...; the next one only once the stream has the one before.
"""

from typing import Final
from uuid import UUID

import msgspec

STREAM: Final = "refusals"
"""Valkey's name of the stream, after the prefix."""

STREAM_BATCHES: Final = 50_000
"""Batches that are kept for a worker that is away; the oldest go first."""


class RefusalCount(msgspec.Struct, frozen=True, array_like=True):
    """How many requests were refused for one reason in one minute; see tenants.models.RefusalMinute for the fields."""

    tenant_id: UUID | None
    key_id: UUID | None
    model: str
    code: str
    status: int
    metric: str
    window: str
    minute: int  # its first second, since the epoch
    refusals: int


class RefusalBatch(msgspec.Struct, frozen=True, array_like=True):
    process_id: UUID
    sequence: int
    counts: list[RefusalCount]


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(RefusalBatch)


def encode_batch(batch: RefusalBatch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(payload: bytes) -> RefusalBatch:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _decoder.decode(payload)

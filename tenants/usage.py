"""A usage row on its way to the ledger: plain structs, so that the relay can write them without a database.

Encoded as MessagePack arrays: new fields go to the end and have defaults, because a spool or stream may
hold rows of the version before.
"""

from typing import Final
from uuid import UUID

import msgspec

STREAM: Final = "usage"
GROUP: Final = "ledger"
"""Valkey's name of the stream (after the prefix), and of the group of its readers."""

MARK_SECONDS: Final = 86_400
"""How long a published mark is kept; the ledger has it for good."""

FAILURES: Final = ("failed", "truncated", "lost")
"""Outcomes that count as failures."""

ENGINE_REQUEST_ID_LENGTH: Final = 200
ERROR_CODE_LENGTH: Final = 64


def mark_key(prefix: str, process_id: UUID) -> str:
    """Under which a process finds how far its rows are in the ledger."""
    return f"{prefix}usage:mark:{process_id}"


class OpenRow(msgspec.Struct, frozen=True, array_like=True):
    """A request that is about to be forwarded. `started_at` is seconds since the epoch."""

    id: UUID
    tenant_id: UUID
    key_id: UUID | None
    model: str
    door: str
    api: str
    streamed: bool
    started_at: float
    subject_id: UUID | None = None
    reserved_input: int | None = None  # bounds, where a limit counts them: what a `lost` row is held to have used
    reserved_output: int | None = None
    reserved_micros: int | None = None


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """One forwarded request and how it ended; see tenants.models.UsageRecord for the fields."""

    id: UUID
    process_id: UUID
    sequence: int  # 1, 2, 3, ... without a gap within a process
    tenant_id: UUID
    key_id: UUID | None
    model: str
    door: str
    api: str
    streamed: bool
    started_at: float
    outcome: str
    status: int
    usage_source: str = "none"
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    duration_ms: float | None = None
    ttft_ms: float | None = None
    attempts: int = 1
    version_id: UUID | None = None
    instance_id: UUID | None = None
    engine_request_id: str = ""
    error_code: str = ""
    subject_id: UUID | None = None
    cost_micros: int = 0
    price_id: UUID | None = None  # None: no price was in effect
    reserved_input: int | None = None  # of a `lost` row; of one whose client left early the output that nobody saw
    reserved_output: int | None = None
    reserved_micros: int | None = None
    queue_ms: float | None = None
    tokenise_ms: float | None = None
    connect_ms: float | None = None
    first_decode_ms: float | None = None


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_open_decoder = msgspec.msgpack.Decoder(OpenRow)
_row_decoder = msgspec.msgpack.Decoder(UsageRow)


def encode_row(row: OpenRow | UsageRow) -> bytes:
    return _encoder.encode(row)


def decode_open(payload: bytes) -> OpenRow:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _open_decoder.decode(payload)


def decode_row(payload: bytes) -> UsageRow:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return _row_decoder.decode(payload)


def storable_text(text: str, length: int) -> str:
    """`text` as PostgreSQL can store it: no NUL, no lone surrogate, at most `length` characters."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:length]

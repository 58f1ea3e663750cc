"""Usage rows for tests of the ledger."""

from typing import Any
from uuid import UUID, uuid4

from core.ids import uuid7
from tenants.usage import UsageRow

TENANT = uuid4()


def usage_row(process_id: UUID, sequence: int, **more: Any) -> UsageRow:
    """A successful relayed chat, with whatever else is said."""
    values: dict[str, Any] = {
        "id": uuid7(),
        "tenant_id": TENANT,
        "key_id": None,
        "model": "tiny",
        "door": "relay",
        "api": "chat",
        "streamed": False,
        "started_at": 1_760_000_000.0,
        "outcome": "success",
        "status": 200,
        "usage_source": "engine",
        "input_tokens": 3,
        "output_tokens": 4,
        "duration_ms": 12.5,
        "ttft_ms": 2.5,
    }
    return UsageRow(process_id=process_id, sequence=sequence, **{**values, **more})

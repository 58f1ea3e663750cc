"""Whether a tenant has been seen to ask, for its quick start."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenants.models import ApiKey, Tenant, UsageRecord


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest request of a tenant in the ledger."""

    id: UUID
    at: datetime
    model: str
    status: int
    outcome: str
    input_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    duration_ms: float | None
    key_name: str


def newest_request(tenant: Tenant) -> Seen | None:
    """None: none came through yet. Refused requests leave no row."""
    row = UsageRecord.objects.filter(tenant_id=tenant.pk).order_by("-id").first()
    if row is None:
        return None
    key = ApiKey.objects.filter(pk=row.key_id).only("name").first() if row.key_id else None
    return Seen(
        id=row.pk,
        at=row.started_at,
        model=row.model,
        status=row.status,
        outcome=row.outcome,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        ttft_ms=row.ttft_ms,
        duration_ms=row.duration_ms,
        key_name=key.name if key else "",
    )

"""The channel `reqlog`: the requests that ended last, while somebody looks; never what was asked or answered."""

from datetime import datetime
from typing import Final

import msgspec

from dashboard.live.base import Encoder, Viewer, tenant_of
from dashboard.live.encoders import Tail, TailEncoder
from dashboard.live.feeds.scopes import tenant_or_all
from dashboard.reads.requests import Line, lines_of
from dashboard.templatetags.tenancy import money
from tenants.policies.roles import Object
from tenants.reads.request_log import newest_requests

NEWEST: Final = 60
"""Rows of a keyframe; where more come between two frames, the page says that some were not shown."""


class Told(msgspec.Struct, frozen=True):
    """One request of a frame; None: not known."""

    id: str
    at: float
    tenant: str
    tenant_name: str
    key: str
    key_name: str
    model: str
    version: str
    instance: str
    outcome: str
    status: int
    code: str
    door: str
    api: str
    streamed: bool
    input: int | None
    output: int | None
    ttft: float | None
    tpot: float | None
    queue: float | None
    duration: float | None
    cost_text: str
    stages: list[tuple[str, float, float]]


class ReqlogFeed:
    """Scope: "" for all tenants, `tenant:SLUG` for one."""

    name: str = "reqlog"
    period_seconds: float = 2.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the usage."""
        if not scope:
            return viewer.reads_platform
        slug = tenant_of(scope)
        return slug is not None and viewer.may_view(Object.USAGE, tenant=slug)

    def read(self, scope: str, *, now: datetime) -> object:
        """Raises Gone for a tenant that is gone."""
        tenant = tenant_or_all(scope)
        rows = newest_requests(tenant_id=tenant.pk if tenant else None, most=NEWEST, now=now)
        return Tail([(str(line.row.pk), _told(line)) for line in reversed(lines_of(rows))])

    def encoder(self) -> Encoder:
        """Rows that are there never change."""
        return TailEncoder("reqlog", "reqlog.v1", most=NEWEST)


def _told(line: Line) -> Told:
    row = line.row
    return Told(
        id=str(row.pk),
        at=row.started_at.timestamp(),
        tenant=line.tenant.slug if line.tenant else "",
        tenant_name=line.tenant.name if line.tenant else "",
        key=str(row.key_id or ""),
        key_name=line.key.name if line.key else "",
        model=row.model,
        version=str(row.version_id or ""),
        instance=str(row.instance_id or ""),
        outcome=row.outcome,
        status=row.status,
        code=row.error_code,
        door=row.door,
        api=row.api,
        streamed=row.streamed,
        input=row.input_tokens,
        output=row.output_tokens,
        ttft=row.ttft_ms,
        tpot=line.tpot_ms,
        queue=row.queue_ms,
        duration=row.duration_ms,
        cost_text=money(row.cost_micros),
        stages=[(stage.name, stage.start, stage.ms) for stage in line.stages],
    )

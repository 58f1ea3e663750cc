"""How limits stand, for pages and the control API: read from Valkey with a short deadline, changing nothing."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import redis
from django.utils import timezone

from gateway.relay.limit_reader import standing
from gateway.relay.limiting import layout
from gateway.relay.limiting.key_limits import key_limit
from gateway.relay.rows import LimitRow
from gateway.services.snapshot_source import limit_rows
from tenants.models import ApiKey
from tenants.standing import Standing

DEADLINE_SECONDS: Final = 0.25
"""A page shows limits without their standing rather than wait for a Valkey that is frozen."""


class StandingReader:
    """Used by any thread; see tenants.standing.Reader."""

    def __init__(self, url: str, *, prefix: str) -> None:
        self._area = layout.area(prefix)
        self._url = url
        self._client: redis.Redis | None = None
        self._lock = threading.Lock()

    def __call__(self, limit_ids: Sequence[UUID]) -> Mapping[UUID, Standing]:
        """Of each limit that is known and can be read; none when counters are lost or Valkey is away.

        The id of a key stands for the requests a minute that the key itself carries.
        """
        rows = limit_rows(limit_ids)
        carried = _carried_by_keys(set(limit_ids) - {row.id for row in rows})
        limits = [*rows, *carried.values()]
        ids = [*(row.id for row in rows), *carried]
        now = timezone.now().timestamp()
        counters = [layout.counter_of(limit, now) for limit in limits]
        pipeline = self._connected().pipeline(transaction=False)
        pipeline.time()
        pipeline.hget(self._area + layout.GENERATION, "state")
        for counter in counters:
            pipeline.hgetall(self._area + counter.name)
        try:
            replies: list[Any] = pipeline.execute()
        except (redis.ConnectionError, redis.TimeoutError):
            return {}
        (seconds, micros), state, *found = replies
        if state != layout.READY.encode():
            return {}
        clock = seconds + micros / 1_000_000
        return {
            asked: Standing(**standing(limit, counter, fields, amount=limit.amount_at(now), clock=clock)._asdict())
            for asked, limit, counter, fields in zip(ids, limits, counters, found, strict=True)
        }

    def _connected(self) -> "redis.Redis":
        with self._lock:
            if self._client is None:
                self._client = redis.Redis.from_url(
                    self._url, socket_timeout=DEADLINE_SECONDS, socket_connect_timeout=DEADLINE_SECONDS
                )
            return self._client


def _carried_by_keys(ids: Collection[UUID]) -> dict[UUID, LimitRow]:
    """By key; those of a lineage share one counter."""
    if not ids:
        return {}
    keys = ApiKey.objects.filter(pk__in=ids, rpm_limit__isnull=False)
    return {key.pk: key_limit(key.limits_id, key.tenant_id, key.rpm_limit) for key in keys if key.rpm_limit is not None}

"""Looks which calendar budgets refuse requests already, though the ledger does not have them used up."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import redis
from django.conf import settings

from gateway.relay.limiting import layout
from tenants.models import Limit
from tenants.reads.consumption import period_of, used_in_period
from tenants.services.alerts import calendar_budgets, tell_budget

_ACTIVE: Final = timedelta(minutes=15)
_AT_ONCE: Final = 500
_DEADLINE_SECONDS: Final = 2.0


def tell_refusing_budgets(*, now: datetime) -> int:
    """Tell of each budget that refused a request in its running period; returns how many were told of anew.

    Looks at budgets of tenants that used something lately. Nothing while Valkey is away. Safe to run twice.
    """
    url = settings.GATEHOUSE.valkey_state_url
    if url is None:
        return 0
    told = 0
    budgets = iter(calendar_budgets(now - _ACTIVE))
    with redis.Redis.from_url(
        url, socket_timeout=_DEADLINE_SECONDS, socket_connect_timeout=_DEADLINE_SECONDS
    ) as client:
        while batch := list(islice(budgets, _AT_ONCE)):
            for limit in _refusing(client, batch, now):
                told += tell_budget(limit, used=used_in_period(limit, now), now=now, refused=True)
    return told


def _refusing(client: "redis.Redis", limits: Sequence[Limit], now: datetime) -> Iterator[Limit]:
    area = layout.area(settings.GATEHOUSE.valkey_prefix)
    pipeline = client.pipeline(transaction=False)
    for limit in limits:
        period = period_of(limit, now)
        counter = layout.calendar_counter(limit.pk, int(period.start), int(period.end))
        pipeline.hget(area + counter.name, "refused")
    try:
        replies: list[Any] = pipeline.execute()
    except (redis.ConnectionError, redis.TimeoutError):
        return
    for limit, refused_at in zip(limits, replies, strict=True):
        if refused_at is not None:
            yield limit

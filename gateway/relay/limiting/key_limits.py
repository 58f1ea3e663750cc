"""The requests a minute that a key itself carries, as a limit like any other."""

from functools import lru_cache
from typing import Final
from uuid import UUID

from gateway.relay.rows import LimitRow

_CAPACITY: Final = 50_000


@lru_cache(maxsize=_CAPACITY)
def key_limit(key_id: UUID, tenant_id: UUID, requests: int) -> LimitRow:
    """At most so many requests of the key in any minute. The same row each time: plans are found by it."""
    return LimitRow(
        id=key_id,
        tenant_id=tenant_id,
        subtree=False,
        key_id=key_id,
        model="",
        metric="requests",
        window="minute",
        amount=requests,
        refill_per_second=None,
        boost_amount=None,
        boost_until=None,
        counts_from=0.0,
        time_zone="UTC",
    )

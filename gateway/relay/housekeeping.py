"""What a process does about its endpoints once a second, whether or not a request comes."""

import asyncio
from collections.abc import Callable
from typing import Final

from core.telemetry.endpoints import EndpointMetrics, Totals
from gateway.relay.picker import Balancer
from gateway.relay.upstream import UpstreamClient

_EVERY_SECONDS: Final = 1.0


class Housekeeping:
    """Sweeps the balancer and what else has to be swept (`sweep`), and tells the metrics of endpoints."""

    def __init__(self, balancer: Balancer, client: UpstreamClient, *, sweep: Callable[[], None] = lambda: None) -> None:
        self._balancer = balancer
        self._sweep = sweep
        self._client = client
        self._metrics = EndpointMetrics()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_EVERY_SECONDS)

    def look(self) -> None:
        """Once: after it, counts match what is in flight, and the metrics say so."""
        balancer, counters = self._balancer, self._client.counters
        balancer.sweep()
        self._sweep()
        self._metrics.publish(
            active=balancer.loads(),
            breakers=balancer.breaker_states(),
            totals=Totals(
                retries=balancer.counters.retries,
                retries_denied=balancer.counters.retries_denied,
                lost_counts=balancer.counters.lost_counts,
                opened_refused=balancer.counters.opened_refused,
                opened_failed=balancer.counters.opened_failed,
                opened=counters.opened,
                reused=counters.reused,
                stale=counters.stale,
            ),
        )

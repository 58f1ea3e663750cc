"""The metrics of what the data plane sends to engines. Instances are labelled by their id.

Active requests add up over the processes on one port; a breaker is each process's own, so the worst is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from prometheus_client import Counter, Gauge

active_requests = Gauge(
    "gatehouse_endpoint_active_requests",
    "Requests in flight on an instance.",
    ["instance"],
    multiprocess_mode="livesum",
)
breaker_state = Gauge(
    "gatehouse_endpoint_breaker",
    "0 closed, 1 half open (one trial is in flight), 2 open (not routed).",
    ["instance"],
    multiprocess_mode="livemax",
)
breakers_opened = Counter(
    "gatehouse_endpoint_breaker_opened",
    "Breakers opened: a connection was refused; or half of the last attempts, or the trial, failed.",
    ["why"],
)
retries = Counter("gatehouse_retries", "Further attempts at another endpoint, made or denied by the budget.", ["made"])
lost_counts = Counter("gatehouse_active_requests_corrected", "Active requests that only the sweep found to be over.")
upstream_requests = Counter(
    "gatehouse_upstream_connections",
    "Requests to engines by the connection they took: opened for it, reused, or reused and found closed (stale).",
    ["how"],
)

BREAKER_NUMBERS: Final[Mapping[str, int]] = {"closed": 0, "half_open": 1, "open": 2}


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start of the process."""

    retries: int = 0
    retries_denied: int = 0
    opened_refused: int = 0  # breakers
    opened_failed: int = 0  # breakers
    lost_counts: int = 0
    opened: int = 0
    reused: int = 0
    stale: int = 0


class EndpointMetrics:
    """Tells the state of one process; `publish` is called about once a second."""

    def __init__(self) -> None:
        self._told = Totals()
        self._active: dict[UUID, int] = {}
        self._breakers: dict[UUID, str] = {}

    def publish(self, *, active: Mapping[UUID, int], breakers: Mapping[UUID, str], totals: Totals) -> None:
        """Tell requests in flight and breaker states by instance; those that are missing have none, or are closed."""
        for instance_id in self._active.keys() - active.keys():
            active_requests.labels(str(instance_id)).set(0)
        for instance_id, count in active.items():
            active_requests.labels(str(instance_id)).set(count)
        self._active = dict(active)
        for instance_id in self._breakers.keys() - breakers.keys():
            breaker_state.labels(str(instance_id)).set(0)
        for instance_id, state in breakers.items():
            breaker_state.labels(str(instance_id)).set(BREAKER_NUMBERS[state])
        self._breakers = dict(breakers)
        before, self._told = self._told, totals
        retries.labels("yes").inc(totals.retries - before.retries)
        retries.labels("no").inc(totals.retries_denied - before.retries_denied)
        breakers_opened.labels("refused").inc(totals.opened_refused - before.opened_refused)
        breakers_opened.labels("failed").inc(totals.opened_failed - before.opened_failed)
        lost_counts.inc(totals.lost_counts - before.lost_counts)
        upstream_requests.labels("opened").inc(totals.opened - before.opened)
        upstream_requests.labels("reused").inc(totals.reused - before.reused)
        upstream_requests.labels("stale").inc(totals.stale - before.stale)

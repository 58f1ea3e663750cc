"""The metrics of the data plane, and their text for Prometheus.

Names follow OpenTelemetry's GenAI conventions where it has them. Labels are bounded: models are those
of the catalogue, codes are those of core.errors. With PROMETHEUS_MULTIPROC_DIR set before this module is
first imported, several processes add up in one exposition.
"""

import os
from bisect import bisect_left

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from core.telemetry import buckets

__all__ = [
    "CONTENT_TYPE_LATEST",
    "Settled",
    "flush",
    "record_fault",
    "record_limit_refusal",
    "record_refusal",
    "record_settled",
    "render_metrics",
    "snapshot_away",
]

requests = Counter("gatehouse_requests", "Forwarded requests by how they ended.", ["door", "api", "model", "outcome"])
refusals = Counter("gatehouse_refusals", "Requests refused before forwarding.", ["door", "code"])
faults = Counter(
    "gatehouse_faults",
    "Requests that failed for the platform's reasons: forwarded (lost, truncated, 5xx), or refused with 5xx before it.",
    ["model", "stage"],
)
memory_misses = Counter(
    "gatehouse_relay_memory_misses", "Requests that found no room in GATEHOUSE_RELAY_MEMORY_BYTES.", ["door"]
)
coalesced = Counter(
    "gatehouse_coalesced_requests", "Requests told the answer of an identical one that was under way.", ["door", "api"]
)
conversations = Counter(
    "gatehouse_conversations",
    "Conversations of keys that have them stored: kept, or dropped and why (full, unavailable, unreadable, stopped).",
    ["door", "result"],
)
limit_refusals = Counter(
    "gatehouse_limit_refusals",
    "Requests refused by a limit (of refusals with 429), by what it counts and in which window.",
    ["door", "metric", "window"],
)
limit_overruns = Counter(
    "gatehouse_limit_overruns",
    "Requests that used more than was reserved for them: a failure of ours.",
    ["door", "api"],
)
ledger_rows_missing = Counter(
    "gatehouse_ledger_rows_missing", "Requests without limits that were served while the usage spool was full."
)
duration_seconds = Histogram(
    "gen_ai_server_request_duration_seconds",
    "From a request's arrival to its last byte.",
    ["api", "model"],
    buckets=buckets.DURATION,
)
ttft_seconds = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From a request's arrival to its first content byte.",
    ["api", "model"],
    buckets=buckets.TTFT,
)
tpot_seconds = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Between two output tokens after the first, on average over a streamed request.",
    ["api", "model"],
    buckets=buckets.TPOT,
)
queue_seconds = Histogram(
    "gatehouse_request_queue_seconds",
    "From a request's arrival until it was handed to the endpoint that answered it, or was the last one tried.",
    ["api", "model"],
    buckets=buckets.QUEUE,
)
tokens = Counter("gatehouse_tokens", "Tokens as settled.", ["model", "direction"])
snapshot_away = Gauge(
    "gatehouse_snapshot_away", "1 while PostgreSQL was not read for over a second.", multiprocess_mode="livemax"
)
spool_bytes = Gauge(
    "gatehouse_spool_bytes", "Usage not yet known to be in the ledger, bytes on disk.", multiprocess_mode="livesum"
)
ledger_unacknowledged = Gauge(
    "gatehouse_ledger_unacknowledged",
    "Settled requests not yet known to be in the ledger.",
    multiprocess_mode="livesum",
)


class Settled:
    """The metrics of one (door, api, model), gathered as plain numbers and brought to Prometheus by `flush`.

    To count in a file that processes share costs more than all else that is done to settle a request.
    """

    __slots__ = (
        "_api",
        "_door",
        "_durations",
        "_input",
        "_input_tokens",
        "_model",
        "_outcomes",
        "_output",
        "_output_tokens",
        "_queues",
        "_tpots",
        "_ttfts",
    )

    def __init__(self, door: str, api: str, model: str) -> None:
        self._door, self._api, self._model = door, api, model
        self._outcomes: dict[str, int] = {}
        self._durations = _Gathered(duration_seconds.labels(api, model), buckets.DURATION)
        self._ttfts = _Gathered(ttft_seconds.labels(api, model), buckets.TTFT)
        self._tpots = _Gathered(tpot_seconds.labels(api, model), buckets.TPOT)
        self._queues = _Gathered(queue_seconds.labels(api, model), buckets.QUEUE)
        self._input = tokens.labels(model, "input")
        self._output = tokens.labels(model, "output")
        for stage in ("forwarded", "refused"):
            faults.labels(model, stage)  # at 0 before the first one: Prometheus sees no increase in what begins at 1
        self._input_tokens = self._output_tokens = 0

    def record(
        self,
        outcome: str,
        *,
        seconds: float,
        first_token_seconds: float | None,
        queue_seconds: float | None = None,
        input_tokens: int | None,
        output_tokens: int | None,
    ) -> None:
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        self._durations.add(seconds)
        if first_token_seconds is not None:
            self._ttfts.add(first_token_seconds)
            per_token = buckets.time_per_output_token(seconds, first_token_seconds, output_tokens)
            if per_token is not None:
                self._tpots.add(per_token)
        if queue_seconds is not None:
            self._queues.add(queue_seconds)
        if input_tokens:
            self._input_tokens += input_tokens
        if output_tokens:
            self._output_tokens += output_tokens

    def flush(self) -> None:
        if not self._outcomes:
            return
        outcomes, self._outcomes = self._outcomes, {}
        for outcome, count in outcomes.items():
            requests.labels(self._door, self._api, self._model, outcome).inc(count)
        self._durations.flush()
        self._ttfts.flush()
        self._tpots.flush()
        self._queues.flush()
        self._input.inc(self._input_tokens)
        self._output.inc(self._output_tokens)
        self._input_tokens = self._output_tokens = 0


class _Gathered:
    """Observations of a histogram that it has not been told yet."""

    __slots__ = ("_bounds", "_counts", "_histogram", "_sum")

    def __init__(self, histogram: Histogram, bounds: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def flush(self) -> None:
        # As Histogram.observe does, but many at once, for which the library has no method.
        for index, count in enumerate(self._counts):
            if count:
                self._histogram._buckets[index].inc(count)
                self._counts[index] = 0
        self._histogram._sum.inc(self._sum)
        self._sum = 0.0


def flush() -> None:
    """Bring what was gathered to Prometheus; to be called a few times a second, and before it is rendered."""
    for settled in _settled.values():
        settled.flush()


_settled: dict[tuple[str, str, str], Settled] = {}
_refused: dict[tuple[str, str], Counter] = {}
_limited: dict[tuple[str, str, str], Counter] = {}


def record_settled(
    door: str,
    api: str,
    model: str,
    outcome: str,
    *,
    seconds: float,
    first_token_seconds: float | None,
    queue_seconds: float | None = None,
    input_tokens: int | None,
    output_tokens: int | None,
) -> None:
    """Count one forwarded request. `model` must be a name of the catalogue."""
    key = (door, api, model)
    settled = _settled.get(key)
    if settled is None:
        settled = _settled[key] = Settled(door, api, model)
    settled.record(
        outcome,
        seconds=seconds,
        first_token_seconds=first_token_seconds,
        queue_seconds=queue_seconds,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def record_refusal(door: str, code: str) -> None:
    """Count one request that was refused before forwarding, by its error code."""
    key = (door, code)
    counter = _refused.get(key)
    if counter is None:
        counter = _refused[key] = refusals.labels(door, code)
    counter.inc()


def record_fault(model: str, stage: str) -> None:
    """Count one request that failed for our reasons; `stage` is forwarded or refused, `model` "" where none is known.

    The ledger's rollups count the same: see tenants.services.latency and RefusalMinute.
    """
    faults.labels(model, stage).inc()


def record_limit_refusal(door: str, metric: str, window: str) -> None:
    """Count one request that a limit refused; `metric` and `window` are the limit's."""
    key = (door, metric, window)
    counter = _limited.get(key)
    if counter is None:
        counter = _limited[key] = limit_refusals.labels(*key)
    counter.inc()


def render_metrics() -> bytes:
    """The exposition of this process, or of all that share a multiprocess directory."""
    flush()
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no type here
        return generate_latest(registry)
    return generate_latest(REGISTRY)

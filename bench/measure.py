"""One round of measurements on one proxy, and the stretch of slow streams."""

import dataclasses
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.cpu import cpu_seconds, rss_bytes
from bench.proxies import Proxy
from bench.tools import LoadResult, Spread, send_load

MODEL: Final = "bench-model"
_PROMPT: Final = "Say in one sentence what a gateway does between an application and a model, and what it must not do. "


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is sent. Everything is bounded: a full run takes about a minute a round and proxy."""

    rounds: int = 3
    warm_up_requests: int = 2_000
    requests: int = 8_000
    saturating_requests: int = 6_000
    saturating_concurrency: int = 16
    streams: int = 64
    stream_concurrency: int = 32
    stream_events: int = 200
    stream_pace_us: int = 10_000
    ttft_streams: int = 400
    ttft_rate: float = 100.0
    slow_streams: int = 500
    slow_events: int = 40
    slow_pace_us: int = 250_000


QUICK: Final = Plan(
    rounds=1,
    warm_up_requests=50,
    requests=200,
    saturating_requests=100,
    streams=4,
    stream_concurrency=4,
    stream_events=20,
    ttft_streams=20,
    slow_streams=20,
    slow_events=4,
    slow_pace_us=50_000,
)


@dataclass(slots=True)
class Round:
    """What one round saw on one proxy; CPU in microseconds, None for no proxy at all."""

    request_us: float | None = None
    """At the one rate that all proxies are asked to carry, half of what ours can."""
    saturated_us: float | None = None
    """With as many at once as keep it busy all the time."""
    requests_per_second: float = 0.0
    event_us: float | None = None
    events_per_read: float = 0.0
    """SSE events in one read of the client; above 1.1 the proxy was too slow to pass each on its own."""
    ttft_ms: Spread | None = None
    half_load_ms: Spread | None = None
    helper_request_us: dict[str, float] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlowStreams:
    """Many slow streams at once through one proxy."""

    count: int
    failed: int
    seconds: float
    longest_gap_ms: float
    kib_per_stream: float | None
    complaint: str | None


def chat(*, events: int | None = None, pace_us: int = 0) -> dict[str, object]:
    """A chat of about 1 KB; with `events` streamed, so many of them, `pace_us` microseconds apart."""
    messages = [
        {"role": "system", "content": "You are a terse assistant."},
        {"role": "user", "content": _PROMPT * 8},
    ]
    body: dict[str, object] = {"model": MODEL, "messages": messages, "temperature": 0.2, "max_tokens": events or 64}
    if events is not None:
        body |= {"stream": True, "bench_pace_us": pace_us}
    return body


class _Meter:
    """CPU that a proxy and its helpers used since the meter was made."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._start = self._read()

    def _read(self) -> dict[str, float]:
        pids = dict(self._proxy.helpers)
        if self._proxy.pid is not None:
            pids[""] = self._proxy.pid
        return {name: cpu_seconds(pid) for name, pid in pids.items()}

    def own_us(self, count: int) -> float | None:
        """Microseconds of the proxy itself for each of `count`."""
        return self.all_us(count).get("")

    def all_us(self, count: int) -> dict[str, float]:
        now = self._read()
        return {name: (now[name] - start) * 1e6 / count for name, start in self._start.items()}


def measure_round(proxy: Proxy, plan: Plan, *, rate: float, cpus: Sequence[int] | None) -> Round:
    """All stretches of one round, requests at `rate` a second.

    Failed requests end up as complaints, never as numbers alone.
    """
    seen = Round()

    def load(what: str, body: Mapping[str, object], **options: object) -> LoadResult:
        result = send_load(proxy.port, body, headers=proxy.headers, cpus=cpus, **options)  # type: ignore[arg-type]
        if result.complaint:
            seen.complaints.append(f"{proxy.name}, {what}: {result.complaint}")
        if complaint := proxy.settled(result.ok, result.failed):
            seen.complaints.append(f"{proxy.name}, {what}: {complaint}")
        return result

    load("warm-up", chat(), requests=plan.warm_up_requests, concurrency=plan.saturating_concurrency)
    meter = _Meter(proxy)
    result = load("requests", chat(), requests=plan.requests, concurrency=64, rate=rate)
    costs = meter.all_us(plan.requests)
    seen.request_us = costs.pop("", None)
    seen.helper_request_us = costs
    seen.half_load_ms = result.latency_ms

    meter = _Meter(proxy)
    concurrency = plan.saturating_concurrency
    result = load("saturation", chat(), requests=plan.saturating_requests, concurrency=concurrency)
    seen.saturated_us = meter.own_us(plan.saturating_requests)
    seen.requests_per_second = result.requests / result.seconds

    meter = _Meter(proxy)
    body = chat(events=plan.stream_events, pace_us=plan.stream_pace_us)
    result = load(
        "streams", body, requests=plan.streams, concurrency=plan.stream_concurrency, events=plan.stream_events
    )
    seen.event_us = meter.own_us(plan.streams * plan.stream_events)
    seen.events_per_read = result.events / max(1, result.reads)

    body = chat(events=8, pace_us=1_000)
    result = load("first tokens", body, requests=plan.ttft_streams, concurrency=64, rate=plan.ttft_rate, events=8)
    seen.ttft_ms = result.ttft_ms
    return seen


def measure_slow_streams(proxy: Proxy, plan: Plan, *, cpus: Sequence[int] | None) -> SlowStreams:
    """All slow streams at once; memory is sampled while they run."""
    body = chat(events=plan.slow_events, pace_us=plan.slow_pace_us)
    seconds = plan.slow_events * plan.slow_pace_us / 1e6
    peak = _Peak(lambda: rss_bytes(proxy.pid) if proxy.pid is not None else 0)
    with peak:
        result = send_load(
            proxy.port,
            body,
            requests=plan.slow_streams,
            concurrency=plan.slow_streams,
            events=plan.slow_events,
            headers=proxy.headers,
            limit_seconds=seconds * 3 + 30,
            cpus=cpus,
        )
    complaint = result.complaint or proxy.settled(result.ok, result.failed)
    return SlowStreams(
        count=plan.slow_streams,
        failed=result.failed,
        seconds=result.seconds,
        longest_gap_ms=result.gap_ms.max if result.gap_ms else 0.0,
        kib_per_stream=peak.grown_bytes / 1024 / plan.slow_streams if proxy.pid is not None else None,
        complaint=f"{proxy.name}, slow streams: {complaint}" if complaint else None,
    )


class _Peak:
    """The highest reading over a stretch, above the first."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._first = self._highest = read()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def grown_bytes(self) -> int:
        return self._highest - self._first

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self._highest = max(self._highest, self._read())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def median(values: Sequence[float | None]) -> float | None:
    """The median of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def plan_facts(plan: Plan) -> dict[str, float]:
    return dataclasses.asdict(plan)

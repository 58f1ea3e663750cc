"""One round of measurements on one proxy; the stretches of slow streams and of memory."""

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.chats import chat
from bench.cpu import cpu_seconds, rss_bytes
from bench.plan import Plan
from bench.proxies import Proxy
from bench.tools import LoadResult, Spread, send_load


@dataclass(slots=True)
class Round:
    """What one round saw on one proxy; CPU in microseconds, None for no proxy at all."""

    rate: float = 0.0
    """Requests a second of `request_us` and `half_load_ms`."""
    request_us: float | None = None
    """At the one rate that all proxies are asked to carry, half of what ours can; else half of what it can."""
    saturated_us: float | None = None
    """With as many at once as keep it busy all the time."""
    requests_per_second: float = 0.0
    event_us: float | None = None
    events_per_read: float = 0.0
    """SSE events in one read of the client; above 1.1 the proxy was too slow to pass each on its own."""
    burst_event_us: float | None = None
    """Per event, when the upstream writes many at once."""
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory over many requests."""

    first_requests: int
    requests: int
    first_mib: float
    last_mib: float
    complaints: tuple[str, ...]

    @property
    def growth(self) -> float:
        """From the first reading to the last, as a share of the first."""
        return self.last_mib / self.first_mib - 1.0 if self.first_mib else 0.0


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
    seen = Round(rate=rate)

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

    def streams(what: str, count: int, events: int, body: Mapping[str, object], **options: object) -> LoadResult:
        return load(what, body, requests=count, events=events + proxy.extra_events, **options)

    meter = _Meter(proxy)
    body = chat(events=plan.stream_events, pace_us=plan.stream_pace_us)
    result = streams("streams", plan.streams, plan.stream_events, body, concurrency=plan.stream_concurrency)
    seen.event_us = meter.own_us(plan.streams * plan.stream_events)
    seen.events_per_read = result.events / max(1, result.reads)

    meter = _Meter(proxy)
    body = chat(events=plan.burst_events, pace_us=plan.burst_pace_us, burst=plan.burst_size)
    streams("bursts", plan.burst_streams, plan.burst_events, body, concurrency=plan.stream_concurrency)
    seen.burst_event_us = meter.own_us(plan.burst_streams * plan.burst_events)

    body = chat(events=8, pace_us=1_000)
    result = streams("first tokens", plan.ttft_streams, 8, body, concurrency=64, rate=plan.ttft_rate)
    seen.ttft_ms = result.ttft_ms
    return seen


def measure_slow_streams(proxy: Proxy, plan: Plan, *, cpus: Sequence[int] | None) -> SlowStreams:
    """All slow streams at once; memory is sampled while they run."""
    body = chat(events=plan.slow_events, pace_us=plan.slow_pace_us)
    seconds = plan.slow_events * plan.slow_pace_us / 1e6 + plan.slow_streams / plan.slow_rate
    peak = _Peak(lambda: rss_bytes(proxy.pid) if proxy.pid is not None else 0)
    with peak:
        result = send_load(
            proxy.port,
            body,
            requests=plan.slow_streams,
            concurrency=plan.slow_streams,
            rate=plan.slow_rate,
            events=plan.slow_events + proxy.extra_events,
            headers=proxy.headers,
            limit_seconds=seconds * 3 + 30,
            cpus=cpus,
        )
    settled = proxy.settled(result.ok, result.failed)
    complaint = result.complaint or settled
    return SlowStreams(
        count=plan.slow_streams,
        failed=result.failed,
        seconds=result.seconds,
        longest_gap_ms=result.gap_ms.max if result.gap_ms else 0.0,
        kib_per_stream=peak.grown_bytes / 1024 / plan.slow_streams if proxy.pid is not None else None,
        complaint=f"{proxy.name}, slow streams: {complaint}" if complaint else None,
    )


def measure_memory(proxy: Proxy, plan: Plan, *, cpus: Sequence[int] | None) -> Memory:
    """Resident memory of a proxy after its first requests and after all, one in ten of them streamed."""
    assert proxy.pid is not None
    readings: list[int] = []
    complaints: list[str] = []
    step = plan.memory_first
    streamed = step // 10
    for _ in range(max(2, plan.memory_requests // step)):
        for body, count, events in ((chat(), step - streamed, None), (chat(events=8), streamed, 8)):
            concurrency = plan.saturating_concurrency
            result = send_load(
                proxy.port,
                body,
                requests=count,
                concurrency=concurrency,
                events=events,
                headers=proxy.headers,
                limit_seconds=120.0,
                cpus=cpus,
            )
            settled = proxy.settled(result.ok, result.failed)
            if complaint := result.complaint or settled:
                complaints.append(f"{proxy.name}, memory: {complaint}")
        readings.append(rss_bytes(proxy.pid))
    return Memory(
        first_requests=step,
        requests=step * len(readings),
        first_mib=readings[0] / 2**20,
        last_mib=readings[-1] / 2**20,
        complaints=tuple(complaints),
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

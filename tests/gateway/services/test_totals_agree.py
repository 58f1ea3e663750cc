"""What Prometheus is told and what the pages' sums say are the same requests in the same buckets."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import REGISTRY

from core.telemetry import buckets, metrics
from gateway.relay.plan import Outcome, Settlement, Usage, UsageSource
from tenants.reads.latency import latency_by_model
from tenants.services.ledger import record_usage
from tenants.usage import decode_row
from tests.gateway.relay.doors import Door

MODEL: Final = "agreeing"
REQUESTS: Final = 400
HISTOGRAMS: Final = {
    "ttft": ("gen_ai_server_time_to_first_token_seconds", buckets.TTFT),
    "tpot": ("gen_ai_server_time_per_output_token_seconds", buckets.TPOT),
    "queue": ("gatehouse_request_queue_seconds", buckets.QUEUE),
    "duration": ("gen_ai_server_request_duration_seconds", buckets.DURATION),
}


def _settlement(dice: random.Random) -> Settlement:
    outcome = dice.choice((Outcome.SUCCESS, Outcome.SUCCESS, Outcome.SUCCESS, *Outcome))
    queue, ttft = round(dice.expovariate(20), 6), round(dice.lognormvariate(-1.5, 1), 6)
    streamed = dice.random() < 0.7
    return Settlement(
        outcome,
        200 if outcome is Outcome.SUCCESS else 502,
        Usage(7, 0, dice.randint(0, 300), UsageSource.ENGINE),
        round(queue + ttft + dice.expovariate(0.3), 6),
        ttft_seconds=round(queue + ttft, 6) if streamed else None,
        queue_seconds=queue if dice.random() < 0.95 else None,
        connect_seconds=0.0,
    )


async def _serve(door: Door) -> None:
    body = b'{"model": "%b", "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode()
    dice = random.Random(11)
    for _ in range(REQUESTS):
        ready = door.pipeline.prepare_now(door.request(body=body))
        assert ready is not None
        ready.ticket.settle(_settlement(dice))
    metrics.flush()
    await door.settler.sync()


def _told(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"model": MODEL, **labels}) or 0.0


@pytest.mark.django_db
@pytest.mark.shows("U7")
def test_the_console_and_prometheus_count_the_same_requests_in_the_same_buckets(tmp_path: Path) -> None:
    door = Door(tmp_path / "spool", spool_bytes=1 << 22)
    door.model(MODEL, ready=True)
    asyncio.run(_serve(door))
    rows = [decode_row(payload) for _, payload in door.spool.rows_after(0, limit=REQUESTS)]
    assert len(rows) == REQUESTS
    record_usage(rows)
    begun = [datetime.fromtimestamp(row.started_at, UTC) for row in rows]
    (sums,) = latency_by_model(since=min(begun), until=max(begun) + timedelta(minutes=1))
    outcomes = {
        str(name): _told("gatehouse_requests_total", door="relay", api="chat", outcome=name) for name in Outcome
    }
    assert (sums.requests, sums.cancelled) == (sum(outcomes.values()), outcomes["cancelled"])
    assert sums.failures == outcomes["failed"] + outcomes["truncated"] + outcomes["lost"]
    for of, (name, bounds) in HISTOGRAMS.items():
        counted = list(accumulate(getattr(sums, of)))
        told = [_told(f"{name}_bucket", api="chat", le=le) for le in [*map(str, bounds), "+Inf"]]
        assert counted == told, of
        assert counted[-1] > 0
    tokens = sum(row.output_tokens or 0 for row in rows)
    assert tokens == _told("gatehouse_tokens_total", direction="output")

"""A million requests: each page of them, whatever it asks for, stays within its time. `make drill`."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest
from django.db import connection

from core.ids import uuid7_from
from tenants.reads.latency import busiest_tenants, latency_by_model
from tenants.reads.request_log import Wanted, find_requests, newest_requests
from tenants.reads.stages import latency_flame, stage_table
from tenants.services.rollups import rebuild_day

pytestmark = [pytest.mark.django_db, pytest.mark.drill]

ROWS: Final = 1_000_000
DAYS: Final = 10
END: Final = datetime(2026, 11, 10, tzinfo=UTC)
SINCE: Final = END - timedelta(days=DAYS)
BAR_MS: Final = 200.0

_FILL: Final = """
INSERT INTO tenants_usagerecord (id, tenant_id, key_id, model, version_id, instance_id, engine_request_id, door, api,
    streamed, outcome, status, error_code, usage_source, input_tokens, cached_tokens, output_tokens, started_at,
    duration_ms, ttft_ms, attempts, process_id, sequence, cost_micros, queue_ms, connect_ms, first_decode_ms)
SELECT
    (lpad(to_hex(ms), 12, '0') || '7' || lpad(to_hex(n %% 4096), 3, '0') || '8000' || lpad(to_hex(n), 12, '0'))::uuid,
    md5('t' || least(n %% 10007, n %% 97))::uuid, md5('k' || n %% 100000)::uuid, 'model-' || n %% 20,
    md5('v' || n %% 40)::uuid, md5('i' || n %% 300)::uuid, 'cmpl-' || n, 'relay',
    CASE WHEN n %% 50000 = 0 THEN 'rerank' ELSE 'chat' END, true,
    CASE WHEN n %% 1000 = 0 THEN 'failed' ELSE 'success' END, CASE WHEN n %% 1000 = 0 THEN 502 ELSE 200 END, '',
    'engine', 900, 0, 1 + n %% 300, to_timestamp(ms / 1000.0), 300 + n %% 4000,
    CASE WHEN n %% 250000 = 0 THEN 9000 ELSE 50 + n %% 700 END, 1, md5('p')::uuid, n, 31, n %% 40, 0, 12
FROM (SELECT n, (extract(epoch FROM %(since)s::timestamptz) * 1000 + n::float8 / %(rows)s * %(span)s)::bigint AS ms
    FROM generate_series(1, %(rows)s - 1) AS n) AS made
"""

ASKS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "a tenant": {"tenant_id": "t5"},
    "a small tenant": {"tenant_id": "t96"},
    "a key": {"key_id": "k77"},
    "a model": {"model": "model-3"},
    "a model of a tenant": {"model": "model-3", "tenant_id": "t5"},
    "faults": {"outcome": "faults"},
    "faults of a tenant": {"outcome": "faults", "tenant_id": "t5"},
    "faults of a model": {"outcome": "faults", "model": "model-0"},
    "cancelled, of which there are none": {"outcome": "cancelled"},
    "a rare api": {"api": "rerank"},
    "slow ones, of which there are four": {"min_ttft_ms": 8_000.0},
    "an instance": {"instance_id": "i7"},
    "a status that none has": {"status": 418},
    "slow tokens of a model": {"min_tpot_ms": 3_000.0, "model": "model-3"},
}


def _uuid(text: str) -> UUID:
    with connection.cursor() as cursor:
        cursor.execute("SELECT md5(%s)::uuid", [text])
        return UUID(str(cursor.fetchone()[0]))


def _ms(work: Callable[[], object]) -> float:
    """The better of three: what the machine does beside is not asked."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        work()
        best = min(best, (time.perf_counter() - began) * 1000)
    return best


def test_every_page_of_a_million_requests_stays_within_its_time() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(_FILL, {"since": SINCE, "rows": ROWS, "span": DAYS * 86_400_000})
        cursor.execute("ANALYZE tenants_usagerecord")
    took: dict[str, float] = {}
    began = time.perf_counter()
    for day in range(DAYS):
        rebuild_day(SINCE + timedelta(days=day))
    print(f"{(time.perf_counter() - began) / DAYS:8.1f} s  a day of {ROWS // DAYS} requests made anew")
    span: dict[str, Any] = {"since": SINCE, "until": END}
    for name, asked in ASKS.items():
        values: dict[str, Any] = {key: _uuid(value) if key.endswith("_id") else value for key, value in asked.items()}
        wanted = Wanted(since=SINCE, until=END, **values)
        took[name] = _ms(partial(find_requests, wanted))
        middle = uuid7_from(int((END - timedelta(days=DAYS / 2)).timestamp() * 1000))
        took[f"{name}, in the middle"] = _ms(partial(find_requests, wanted, before=middle))
    models = [one.model for one in latency_by_model(**span)]
    most = ("ttft", "tpot", "queue")  # as pages ask
    odd: dict[str, Any] = {"since": SINCE + timedelta(minutes=1), "until": END - timedelta(minutes=1)}
    took["sums by model"] = _ms(lambda: latency_by_model(**odd, of=most))
    took["counts by model"] = _ms(lambda: latency_by_model(**odd, of=()))
    took["sums of a tenant"] = _ms(lambda: latency_by_model(**odd, of=most, tenant_id=_uuid("t5")))
    took["busiest tenants"] = _ms(lambda: busiest_tenants(until=END, most=20))
    took["stages"] = _ms(lambda: stage_table(**span, models=models))
    took["stages of a tenant"] = _ms(lambda: stage_table(**span, models=models, tenant_id=_uuid("t5")))
    took["flame"] = _ms(lambda: latency_flame(**span, models=models))
    took["newest"] = _ms(lambda: newest_requests(tenant_id=None, most=60, now=datetime.now(UTC)))
    for name, ms in took.items():
        print(f"{ms:8.1f} ms  {name}")
    assert {name: ms for name, ms in took.items() if ms > BAR_MS} == {}

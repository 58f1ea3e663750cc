"""Pages of forwarded requests: keyset, whatever is asked for, in bounded steps."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.ids import uuid7_from
from tenants.reads.request_log import Found, Wanted, all_requests, find_requests, get_request
from tenants.services.ledger import record_usage
from tenants.usage import UsageRow
from tests.tenants.usage_rows import TENANT, usage_row

pytestmark = pytest.mark.django_db
PROCESS, KEY, OTHER = uuid4(), uuid4(), uuid4()
DAY = datetime(2026, 11, 10, tzinfo=UTC)
_numbers = iter(range(1, 1_000_000))


def _row(second: float, **more: Any) -> UsageRow:
    number, at = next(_numbers), DAY + timedelta(seconds=second)
    identity = uuid7_from(int(at.timestamp() * 1000), number % 4096, number)
    return usage_row(PROCESS, number, id=identity, started_at=at.timestamp(), **more)


def _wanted(**more: Any) -> Wanted:
    return Wanted(since=DAY, until=DAY + timedelta(days=1), **more)


def _walk(wanted: Wanted, **more: Any) -> tuple[list[UUID], int]:
    """All ids, page by page, and how many pages."""
    ids: list[UUID] = []
    page: Found | None = None
    pages = 0
    while page is None or page.older is not None:
        page = find_requests(wanted, before=page.older if page else None, **more)
        ids += [row.pk for row in page.rows]
        pages += 1
    return ids, pages


ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tenant": ({"tenant_id": OTHER}, {"tenant_id": OTHER}),
    "key": ({"key_id": KEY}, {"key_id": KEY}),
    "model": ({"model": "big"}, {"model": "big"}),
    "version": ({"version_id": KEY}, {"version_id": KEY}),
    "instance": ({"instance_id": KEY}, {"instance_id": KEY}),
    "outcome": ({"outcome": "truncated"}, {"outcome": "truncated"}),
    "unwell": ({"outcome": "cancelled", "status": 499}, {"outcome": "unwell"}),
    "failures": ({"outcome": "failed", "status": 400}, {"outcome": "failures"}),
    "faults": ({"outcome": "failed", "status": 502}, {"outcome": "faults"}),
    "status": ({"status": 207}, {"status": 207}),
    "class": ({"status": 302}, {"status_class": 3}),
    "code": ({"error_code": "upstream_error"}, {"error_code": "upstream_error"}),
    "door": ({"door": "drf"}, {"door": "drf"}),
    "api": ({"api": "embeddings"}, {"api": "embeddings"}),
    "slow to begin": ({"ttft_ms": 2_100.0, "duration_ms": 2_200.0}, {"slow": True}),
    "slow to end": ({"duration_ms": 31_000.0, "output_tokens": 1}, {"slow": True}),
    "ttft": ({"ttft_ms": 801.0, "duration_ms": 900.0}, {"min_ttft_ms": 800.0}),
    "tpot": ({"ttft_ms": 1.0, "duration_ms": 1001.0, "output_tokens": 11}, {"min_tpot_ms": 99.0}),
    "queue": ({"queue_ms": 55.0}, {"min_queue_ms": 50.0}),
    "duration": ({"duration_ms": 5_000.0}, {"min_duration_ms": 4_000.0}),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_asked_for_is_found_among_others_and_nothing_else(odd: str) -> None:
    values, asked = ODD[odd]
    ordinary = [_row(second) for second in range(0, 40, 2)]
    wanted = [_row(second, **values) for second in (3, 11, 33)]
    record_usage([*ordinary, *wanted])
    expected = [row.id for row in reversed(wanted)]
    assert _walk(_wanted(**asked), size=2)[0] == expected
    assert _walk(_wanted(**asked), size=2, scan=5)[0] == expected
    assert list(all_requests(_wanted(**asked)).order_by("-pk").values_list("pk", flat=True)) == expected


def test_pages_join_without_a_gap_in_both_directions() -> None:
    rows = [_row(second) for second in range(25)]
    record_usage(rows)
    newest_first = [row.id for row in reversed(rows)]
    assert _walk(_wanted(), size=10) == (newest_first, 3)
    last = find_requests(_wanted(), before=newest_first[19], size=10)
    assert (last.older, [row.pk for row in last.rows]) == (None, newest_first[20:])
    back = find_requests(_wanted(), after=last.newer, size=10)
    assert [row.pk for row in back.rows] == newest_first[10:20]
    assert back.older == newest_first[19]
    first = find_requests(_wanted(), after=back.newer, size=10)
    assert ([row.pk for row in first.rows], first.newer) == (newest_first[:10], None)


def test_a_page_that_has_looked_at_enough_says_how_far_it_came() -> None:
    record_usage([_row(second, model="big" if second == 0 else "tiny") for second in range(30)])
    page = find_requests(_wanted(tenant_id=TENANT, model="big"), size=5, scan=10)
    assert list(page.rows) == []
    assert page.reached == DAY + timedelta(seconds=20)
    page = find_requests(_wanted(tenant_id=TENANT, model="big"), before=page.older, size=5, scan=30)
    assert (len(page.rows), page.reached, page.older) == (1, None, None)


def test_the_span_is_by_arrival() -> None:
    record_usage([_row(-0.001), _row(0), _row(86_399.999), _row(86_400)])
    assert len(find_requests(_wanted()).rows) == 2


def test_another_tenants_request_is_not_there() -> None:
    row = _row(1, tenant_id=OTHER, key_id=KEY)
    record_usage([row])
    assert get_request(row.id, tenant_id=TENANT) is None
    assert get_request(row.id, tenant_id=OTHER) is not None
    assert get_request(row.id, tenant_id=None) is not None
    assert list(find_requests(_wanted(tenant_id=TENANT, key_id=KEY)).rows) == []
    assert list(find_requests(_wanted(tenant_id=TENANT), before=UUID(int=row.id.int + 1)).rows) == []


@pytest.mark.parametrize("edge", [UUID(int=0), UUID(int=(1 << 128) - 1)])
def test_the_first_and_the_last_of_all_ids_are_pages_too(edge: UUID) -> None:
    record_usage([_row(1.0)])
    before, after = find_requests(_wanted(), before=edge), find_requests(_wanted(), after=edge)
    assert len(before.rows) + len(after.rows) == 1
    if not before.rows:
        assert before.newer == edge

"""From the door to the bill: a request costs what was in effect when it began, and the statement is the sum of them."""

from datetime import datetime

from django.utils import timezone

from bench.house import wait_until
from tenants.actor import SYSTEM
from tenants.models import Tenant, UsageRecord
from tenants.policies.pricing import PriceTag, cost_micros
from tenants.services.adjustments import adjust_bill
from tenants.services.prices import set_price
from tenants.statements import Statement, build_statement
from tests.house import TestHouse
from tests.waiting import stay_within_a_day

TAG = PriceTag(input_micros=1_500_000, cached_input_micros=750_000, output_micros=6_000_000, request_micros=11)
DEARER = PriceTag(input_micros=3_000_000, cached_input_micros=3_000_000, output_micros=9_000_000, request_micros=100)


def _ask(house: TestHouse, *, stream: bool) -> UsageRecord:
    body = {
        "model": "tiny", "stream": stream, "max_tokens": 5, "messages": [{"role": "user", "content": "one two three"}],
    }  # fmt: skip
    with house.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return house.ledger_row(answer.headers["x-request-id"])


def _cost(tag: PriceTag, row: UsageRecord) -> int:
    return cost_micros(
        tag,
        input_tokens=row.input_tokens or 0,
        cached_tokens=row.cached_tokens or 0,
        output_tokens=row.output_tokens or 0,
    )


def _statement(tenant: Tenant, now: datetime) -> Statement:
    return build_statement(tenant, f"{now:%Y-%m}", now=now)


def test_a_bill_is_what_its_requests_cost(house: TestHouse) -> None:
    stay_within_a_day()
    first = set_price("tiny", TAG, actor=SYSTEM)
    wait_until(lambda: _ask(house, stream=False).price_id == first.pk, "the price at the door")
    rows = [_ask(house, stream=stream) for stream in (False, True)]
    for row in rows:
        assert (row.price_id, row.cost_micros) == (first.pk, _cost(TAG, row))
        assert row.cost_micros > 11

    second = set_price("tiny", DEARER, actor=SYSTEM)
    wait_until(lambda: _ask(house, stream=True).price_id == second.pk, "the new price at the door")
    row = _ask(house, stream=False)
    assert (row.price_id, row.cost_micros) == (second.pk, _cost(DEARER, row))

    now = timezone.now()
    statement = _statement(house.tenant, now)
    ledger = UsageRecord.objects.filter(tenant_id=house.tenant.pk)
    assert statement.requests == ledger.count()
    assert statement.total_micros == sum(row.cost_micros for row in ledger) > 0
    assert {line.key_id for line in statement.lines} == {house.key.id}
    adjust_bill(
        house.tenant, kind="credit", amount_micros=-5, month=f"{now:%Y-%m}", reason="slow", actor=SYSTEM,
        usage_record_id=row.pk,
    )  # fmt: skip
    assert _statement(house.tenant, now).total_micros == statement.total_micros - 5

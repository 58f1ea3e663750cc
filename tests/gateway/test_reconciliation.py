"""The ledger agrees with what a real engine has counted itself."""

import pytest

from bench.house import wait_until
from gateway.models import EngineDrift
from gateway.services.engine_counters import reconcile_engines
from tenants.models import UsageRecord
from tests.house import TestHouse


@pytest.mark.parametrize("streamed", [False, True])
def test_llamacpp_counts_what_the_ledger_has(house: TestHouse, streamed: bool) -> None:
    EngineDrift.objects.all().delete()
    reconcile_engines()
    before = UsageRecord.objects.count()
    with house.client() as client:
        for number in range(4):
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"Tell {number}"}], "max_tokens": 8}
            answer = client.post("/v1/chat/completions", json=body | {"stream": streamed})
            assert answer.status_code == 200
            answer.read()
    wait_until(lambda: UsageRecord.objects.count() == before + 4, "rows")
    reconcile_engines()
    drift = EngineDrift.objects.filter(instance_id=house.instance.pk).latest("id")
    assert (drift.requests, drift.difference_input, drift.difference_output) == (4, 0, 0)
    assert drift.ledger_output > 0
    assert drift.without_cached  # what a slot still had of the prompt is taken out on both sides

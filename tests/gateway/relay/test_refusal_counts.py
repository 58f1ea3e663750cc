"""Counts of refusals in a process: told apart by whom and why, bounded, and sent again until the stream has them."""

from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec import structs

from core.errors import NoReadyInstance, QuotaExceeded, RateLimited
from gateway.relay import refusal_counts
from gateway.relay.refusal_counts import RefusalCounts, RefusalOutbox
from gateway.relay.valkey import ValkeyClient, ValkeyUnavailable
from tenants.refusals import RefusalCount, decode_batch
from tests.gateway.relay.doors import BODY, TENANT, Door
from tests.gateway.relay.test_request_log import PRINCIPAL

NOW = 1_760_000_059.0
MINUTE = 1_760_000_040


def _limited(metric: str = "tokens", window: str = "minute") -> RateLimited:
    error = RateLimited()
    error.metric, error.window = metric, window
    return error


def test_refusals_are_told_apart_by_who_for_what_and_why() -> None:
    counts = RefusalCounts(lambda: NOW)
    counts.note(PRINCIPAL, "tiny", _limited())
    counts.note(PRINCIPAL, "tiny", _limited())
    counts.note(PRINCIPAL, "tiny", _limited("requests"))
    counts.note(PRINCIPAL, "tiny", NoReadyInstance())
    counts.note(None, "", QuotaExceeded())
    whose = PRINCIPAL.tenant_id, PRINCIPAL.key_id
    assert counts.take() == [
        RefusalCount(*whose, "tiny", "rate_limit_exceeded", 429, "tokens", "minute", MINUTE, 2),
        RefusalCount(*whose, "tiny", "rate_limit_exceeded", 429, "requests", "minute", MINUTE, 1),
        RefusalCount(*whose, "tiny", "no_ready_instance", 503, "", "", MINUTE, 1),
        RefusalCount(None, None, "", "insufficient_quota", 429, "", "", MINUTE, 1),
    ]
    assert counts.take() == []


def test_however_many_are_refused_little_is_held_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_counts, "MOST_COUNTS", 10)
    counts = RefusalCounts(lambda: NOW)
    for number in range(500):
        counts.note(PRINCIPAL, f"model-{number}", _limited())
    for _ in range(500):
        stranger = structs.replace(PRINCIPAL, tenant_id=uuid4())
        counts.note(stranger, "tiny", _limited())
    taken = counts.take()
    assert len(taken) <= 21
    assert sum(count.refusals for count in taken) == 1000


class _Valkey:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.failures = 0

    async def call(self, *arguments: Any, deadline_seconds: float) -> bytes:
        self.sent.append(arguments[-1])
        if self.failures:
            self.failures -= 1
            raise ValkeyUnavailable("away")
        return b"1-0"


async def test_a_batch_that_may_not_have_arrived_is_sent_again_under_its_own_number() -> None:
    counts, valkey = RefusalCounts(lambda: NOW), _Valkey()
    outbox = RefusalOutbox(counts, cast(ValkeyClient, valkey), prefix="t:", process_id=uuid4())
    await outbox.send()
    assert valkey.sent == []
    counts.note(PRINCIPAL, "tiny", _limited())
    valkey.failures = 1
    with pytest.raises(ValkeyUnavailable):
        await outbox.send()
    counts.note(PRINCIPAL, "tiny", _limited())
    await outbox.send()
    await outbox.send()
    batches = [decode_batch(payload) for payload in valkey.sent]
    assert [(batch.sequence, sum(count.refusals for count in batch.counts)) for batch in batches] == [
        (1, 1),
        (1, 1),
        (2, 1),
    ]


async def test_the_pipeline_says_who_was_refused_for_which_model_and_by_which_limit(tmp_path: Path) -> None:
    counts = RefusalCounts(lambda: NOW)
    door = Door(tmp_path / "spool")
    door.pipeline._refusals = counts
    door.key("limited", rpm_limit=1)
    door.model("idle")
    door.limiter.refusals = [_limited("requests")]
    for secret, body in (
        ("limited", BODY),
        ("good", BODY.replace(b"tiny", b"idle")),
        ("good", BODY.replace(b"tiny", b"made-up")),
        ("unknown", BODY),
    ):
        await door.refusal(secret, body)
    told = [(one.tenant_id, one.model, one.status, one.code, one.metric) for one in counts.take()]
    assert told == [
        (TENANT, "tiny", 429, "rate_limit_exceeded", "requests"),
        (TENANT, "idle", 503, "no_ready_instance", ""),
        (TENANT, "", 404, "model_not_found", ""),  # a client's own words are in no count
        (None, "", 401, "invalid_api_key", ""),
    ]

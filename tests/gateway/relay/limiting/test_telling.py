"""What clients are told of limits: header fields and the words of refusals."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from core.errors import QuotaExceeded, RateLimited
from gateway.relay.limiting.accounts import Account
from gateway.relay.limiting.headers import format_reset, ratelimit_headers
from gateway.relay.limiting.key_limits import key_limit
from gateway.relay.limiting.layout import counter_of
from gateway.relay.limiting.refusals import Refused, refusal, scope_of
from gateway.relay.rows import LimitRow
from tests.gateway.relay.limiting.valkey import NOON, a_limit


def account(limit: LimitRow, *, left: int, free: int = 0) -> Account:
    account = Account(counter_of(limit, NOON), limit)
    account.amount, account.left, account.free = limit.amount, left, free
    return account


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0s"), (0.02, b"20ms"), (0.0001, b"1ms"), (1, b"1s"), (59.6, b"1m0s"), (360, b"6m0s"), (7_384, b"2h3m4s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: bytes) -> None:
    assert format_reset(seconds) == text


def test_what_remains_is_what_is_left_and_what_lies_here() -> None:
    minute, day = account(a_limit(amount=100), left=20, free=5), account(a_limit("requests", "day", 50), left=40)
    fields = dict(ratelimit_headers([(day, 0), (minute, 0)], NOON))
    assert fields == {
        b"x-ratelimit-limit-requests": b"100",
        b"x-ratelimit-remaining-requests": b"25",
        b"x-ratelimit-reset-requests": b"1m0s",
    }


def test_nothing_is_less_than_nothing() -> None:
    below = account(a_limit("output_tokens", "bucket", 100, refill=2.0), left=-5)
    fields = dict(ratelimit_headers([(below, 3)], NOON))
    assert fields[b"x-ratelimit-remaining-tokens"] == b"0"
    assert fields[b"x-ratelimit-reset-tokens"] == b"50s"


TENANT, KEY = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tenant_id": None}, "of this installation"),
        ({}, "of tenant acme"),
        ({"subtree": True}, "of tenant acme with its departments"),
        ({"key_id": KEY}, "of this key"),
        ({"model": "tiny"}, "of tenant acme for model 'tiny'"),
    ],
)
def test_a_refusal_says_whose_limit_it_is(changes: dict[str, object], words: str) -> None:
    assert scope_of(replace(a_limit(), **({"tenant_id": TENANT, "tenant_slug": "acme"} | changes))) == words


@pytest.mark.shows("G5")
def test_a_refusal_cites_limit_used_reserved_and_reset() -> None:
    limit = replace(a_limit("tokens", "minute", amount=1_000), tenant_id=TENANT, tenant_slug="acme")
    error = refusal([Refused(account(limit, left=100), 200, 100, 850, 50, 12.0, 0)], [(b"x", b"y")])
    assert isinstance(error, RateLimited)
    assert error.message == (
        "Rate limit reached for tokens per minute of tenant acme: limit 1000, used 850, reserved 50, "
        "requested 200, reset in 12 s."
    )
    assert error.retry_after_seconds == 12
    assert error.headers == ((b"x", b"y"),)


@pytest.mark.parametrize(("used", "held", "retry"), [(900, 0, 43_200), (0, 900, 1)])
def test_a_budget_is_worth_a_retry_only_where_what_runs_may_give_back(used: int, held: int, retry: int) -> None:
    limit = a_limit("tokens", "day", amount=1_000)
    error = refusal([Refused(account(limit, left=100), 200, 100, used, held, 43_200.0, 1)], [])
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after_seconds == retry
    assert "reset in 43200 s" in error.message


def test_a_keys_own_limit_is_the_same_row_each_time() -> None:
    assert key_limit(KEY, TENANT, 5) is key_limit(KEY, TENANT, 5)
    assert key_limit(KEY, TENANT, 6).amount == 6

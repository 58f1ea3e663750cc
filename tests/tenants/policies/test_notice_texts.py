"""Amounts as notices say them."""

import pytest

from tenants.policies.notice_texts import amount_text


@pytest.mark.parametrize(
    ("metric", "amount", "said"),
    [
        ("tokens", 1500, "1,500 tokens"),
        ("money", 12_340_000, "12.34 EUR"),
        ("money", 1_234_567_890_000, "1,234,567.89 EUR"),
        ("money", 1_005_000, "1.01 EUR"),  # half up, which no float does
        ("money", 9_007_199_254_740_992, "9,007,199,254.74 EUR"),
        ("money", 500, "0.0005 EUR"),  # a budget of nothing it is not
        ("money", 0, "0.00 EUR"),
    ],
)
def test_money_is_said_exactly_to_the_cent_and_less_than_one_in_full(metric: str, amount: int, said: str) -> None:
    assert amount_text(metric, amount, "EUR" if metric == "money" else "") == said

"""Costs are whole millionths, never above what was reserved for them, and grow with use; money is read exactly."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.money import CURRENCIES, MOST_MICROS, amount_of, micros_of
from tenants.policies.pricing import FREE, PriceTag, bound_micros, cost_micros

micros = st.integers(0, MOST_MICROS)
tags = st.builds(PriceTag, micros, micros, micros, micros, micros)
tokens = st.integers(0, 2**40)


@given(tags, tokens, tokens, tokens, tokens, tokens)
def test_no_request_costs_more_than_its_bound(
    tag: PriceTag, read: int, cached: int, written: int, more_read: int, more_written: int
) -> None:
    bound = bound_micros(tag, input_tokens=read + more_read, output_tokens=written + more_written)
    assert cost_micros(tag, input_tokens=read, cached_tokens=cached, output_tokens=written) <= bound


@given(tags, tokens, tokens, tokens, st.integers(0, 1000), st.integers(0, 1000))
def test_more_use_never_costs_less(tag: PriceTag, read: int, cached: int, written: int, more: int, longer: int) -> None:
    cached = min(cached, read)
    cost = cost_micros(tag, input_tokens=read, cached_tokens=cached, output_tokens=written)
    assert cost >= 0
    assert cost_micros(tag, input_tokens=read + more, cached_tokens=cached, output_tokens=written + longer) >= cost


@given(tags, tokens, tokens, tokens)
def test_a_cost_is_rounded_up_once(tag: PriceTag, read: int, cached: int, written: int) -> None:
    cached = min(cached, read)
    exact = (
        (read - cached) * tag.input_micros + cached * tag.cached_input_micros + written * tag.output_micros
    )  # in millionths of millionths
    cost = cost_micros(tag, input_tokens=read, cached_tokens=cached, output_tokens=written) - tag.request_micros
    assert 0 <= cost * 1_000_000 - exact < 1_000_000


def test_costs_by_hand() -> None:
    tag = PriceTag(input_micros=150_000, cached_input_micros=75_000, output_micros=600_000, request_micros=10)
    assert cost_micros(tag, input_tokens=1000, cached_tokens=400, output_tokens=500) == 90 + 30 + 300 + 10
    assert cost_micros(tag, input_tokens=1, cached_tokens=0, output_tokens=0) == 1 + 10
    assert cost_micros(tag, input_tokens=5, cached_tokens=50, output_tokens=0) == 1 + 10  # an engine's slip
    assert cost_micros(FREE, input_tokens=10**9, cached_tokens=0, output_tokens=10**9) == 0


@given(st.integers(-(10**15), 10**15))
def test_money_is_written_and_read_back_exactly(value: int) -> None:
    assert micros_of(amount_of(value)) == value
    assert micros_of(Decimal(value).scaleb(-6)) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [("0.15", 150_000), ("1", 1_000_000), ("0.000001", 1), ("-2.5", -2_500_000), ("1e-3", 1000), ("0.1500000", 150_000),
     ("0", 0), ("-0", 0), ("0E+100", 0)],
)  # fmt: skip
def test_amounts_as_people_write_them(written: str, value: int) -> None:
    assert micros_of(written) == value


@pytest.mark.parametrize("written", ["", "abc", "0.0000001", "NaN", "Infinity", "1e1000000", "1e-1000000", "1,5", "١x"])
def test_what_is_no_amount_is_refused(written: str) -> None:
    with pytest.raises(ValueError):
        micros_of(written)


def test_currencies_have_three_letters() -> None:
    assert all(len(code) == 3 and code.isupper() for code in CURRENCIES)
    assert {"USD", "EUR", "CNY", "JPY", "INR"} <= CURRENCIES

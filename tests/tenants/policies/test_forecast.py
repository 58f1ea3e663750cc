"""Where a month is heading: by the line, and by the weekdays' own rhythm."""

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.forecast import Course, days_of, forecast

NOVEMBER = days_of(date(2026, 11, 1), date(2026, 12, 1))


def course(day: int, passed: float = 0.0) -> Course:
    return Course(NOVEMBER, date(2026, 11, day), passed)


def test_without_history_it_is_a_line() -> None:
    found = forecast(course(11), used=1000, daily={date(2026, 11, 5): 1000}, amount=2500)
    assert (found.linear, found.weekdays, found.expected) == (3000, None, 3000)
    assert found.reached_on == date(2026, 11, 25)  # 100 a day, 1500 to go, from the 11th on


def test_weekends_are_told_from_weeks() -> None:
    days = days_of(date(2026, 10, 1), date(2026, 11, 16))  # the 16th is a Monday
    daily = {day: 100 for day in days if day.weekday() < 5}
    used = sum(units for day, units in daily.items() if day.month == 11)
    found = forecast(course(16), used=used, daily=daily, amount=1500)
    assert used == 1000
    assert found.weekdays == 2100  # eleven working days to come
    assert found.linear == 2000
    assert found.reached_on == date(2026, 11, 20)


def test_days_without_use_count_in_the_mean() -> None:
    first = date(2026, 11, 1)
    daily = {first: 280}
    found = forecast(course(29), used=280, daily=daily)
    assert found.weekdays == 280 + 70  # one Sunday of four; the 29th is one


def test_too_early_to_say() -> None:
    found = forecast(course(1, 0.5), used=10, daily={}, amount=100)
    assert (found.linear, found.weekdays, found.expected, found.reached_on) == (None, None, None, None)


@given(
    day=st.integers(1, 30),
    passed=st.floats(0, 1, exclude_max=True),
    daily=st.dictionaries(st.integers(1, 60), st.integers(0, 10**12), max_size=40),
    used=st.integers(0, 10**12),
    amount=st.integers(1, 10**13),
)
def test_a_forecast_is_never_less_than_what_was_used(
    day: int, passed: float, daily: dict[int, int], used: int, amount: int
) -> None:
    today = date(2026, 11, day)
    known = {today - timedelta(days=back): units for back, units in daily.items()}
    found = forecast(course(day, passed), used=used, daily=known, amount=amount)
    for way in (found.linear, found.weekdays):
        assert way is None or way >= used
    if found.reached_on is not None:
        assert today <= found.reached_on <= NOVEMBER[-1]
        assert found.expected is not None
        assert found.expected >= amount - 1

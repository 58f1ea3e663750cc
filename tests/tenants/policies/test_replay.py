"""What a limit would have blocked: never more let through than it allows, and nothing blocked without need."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.periods import period_at
from tenants.policies.replay import MOST_FIRST, Outcome, Rule, Use, first_of, gate, replay

NOON = datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()  # the day before Berlin's clocks change

uses = st.lists(
    st.builds(Use, st.integers(0, 400_000).map(lambda n: NOON + n / 2), st.integers(0, 50), st.floats(0, 300)),
    max_size=60,
).map(sorted)


def _admitted(rule: Rule, given_uses: list[Use]) -> list[Use]:
    passes = gate(rule)
    return [use for use in given_uses if passes.admits(use)]


@given(uses, st.integers(1, 200), st.sampled_from(["day", "month"]))
def test_no_period_lets_more_through_than_its_budget(given_uses: list[Use], amount: int, window: str) -> None:
    rule = Rule(window, amount, "Europe/Berlin")
    sums: dict[float, int] = {}
    for use in _admitted(rule, given_uses):
        start = period_at(window, "Europe/Berlin", use.at).start
        sums[start] = sums.get(start, 0) + use.amount
    assert all(used <= amount for used in sums.values())


@given(uses, st.integers(1, 200))
def test_no_sixty_seconds_let_more_through_than_the_limit(given_uses: list[Use], amount: int) -> None:
    admitted = _admitted(Rule("minute", amount), given_uses)
    for last in admitted:
        window = [use.amount for use in admitted if int(last.at) - 60 < int(use.at) <= int(last.at)]
        assert sum(window) <= amount


@given(uses, st.integers(1, 200), st.floats(0.01, 10))
def test_a_bucket_lets_through_what_it_holds_and_what_comes_back(
    given_uses: list[Use], amount: int, refill: float
) -> None:
    admitted = _admitted(Rule("bucket", amount, refill_per_second=refill), given_uses)
    for number, first in enumerate(admitted):
        for last_number in range(number, len(admitted)):
            taken = sum(use.amount for use in admitted[number : last_number + 1])
            assert taken <= amount + (admitted[last_number].at - first.at) * refill + 1e-6


@given(uses, st.integers(1, 5))
def test_never_more_at_once_than_stand(given_uses: list[Use], amount: int) -> None:
    admitted = _admitted(Rule("standing", amount), given_uses)
    for one in admitted:
        assert sum(use.at <= one.at < use.at + use.seconds for use in admitted) <= amount + sum(
            use.seconds == 0 for use in admitted
        )


@given(uses, st.sampled_from([Rule("day", 10**9), Rule("minute", 10**9), Rule("standing", 10**9)]))
def test_a_limit_above_everything_blocks_nothing(given_uses: list[Use], rule: Rule) -> None:
    outcome = replay(rule, given_uses)
    assert (outcome.requests, outcome.blocked, outcome.blocked_share) == (len(given_uses), 0, 0.0)
    assert outcome.used == sum(use.amount for use in given_uses)


@given(st.lists(st.integers(0, 400_000), max_size=60).map(sorted), st.integers(1, 40))
def test_of_equal_requests_a_higher_budget_never_blocks_more(seconds: list[int], amount: int) -> None:
    equal = [Use(NOON + second, 1) for second in seconds]
    for window in ("day", "month", "minute"):
        assert replay(Rule(window, amount + 1), equal).blocked <= replay(Rule(window, amount), equal).blocked


def test_the_first_blocked_are_told_with_their_times() -> None:
    outcome = replay(Rule("minute", 3), [Use(NOON + second, 1) for second in range(30)])
    assert (outcome.blocked, outcome.blocked_amount, outcome.blocked_share) == (27, 27, 0.9)
    assert outcome.first == [NOON + second for second in range(3, 3 + MOST_FIRST)]
    assert replay(Rule("minute", 3), []) == Outcome()


def test_the_bound_stops_reading() -> None:
    read: list[int] = []

    def rows() -> object:
        for number in range(100):
            read.append(number)
            yield Use(NOON, 1)

    assert replay(Rule("day", 5), first_of(rows(), 7)).requests == 7  # type: ignore[arg-type]
    assert len(read) <= 8


def test_an_unknown_window_is_refused() -> None:
    with pytest.raises(ValueError):
        gate(Rule("week", 1))


def test_a_row_of_the_old_day_that_comes_late_does_not_begin_the_new_one_again() -> None:
    midnight = period_at("day", "Europe/Berlin", NOON).end
    late = [Use(midnight - 1, 5), Use(midnight + 1, 5), Use(midnight - 0.5, 5), Use(midnight + 2, 5)]
    assert _admitted(Rule("day", 5, "Europe/Berlin"), late) == late[:2]

"""Objectives in figures: budgets, burn rates, and what is said where nothing is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.slo import (
    BOUNDS,
    DAY,
    PAIRS,
    BadThreshold,
    Counted,
    Kind,
    bound_of,
    budget_of,
    burn_down,
    burn_rate,
    can_fire,
    exhaustion,
    is_burning,
    most_burn,
    place_of,
    presets,
    rolling_burn,
)

counts = st.integers(0, 10_000).flatmap(lambda total: st.builds(Counted, st.just(total), st.integers(0, total)))
targets = st.sampled_from([0.9, 0.95, 0.99, 0.995, 0.999])


def test_pairs_are_those_of_the_workbook() -> None:
    assert [(one.name, one.burn, one.severity.value) for one in PAIRS] == [
        ("1h-5m", 14.4, "page"),
        ("6h-30m", 6.0, "page"),
        ("3d-6h", 1.0, "ticket"),
    ]


def test_a_budget_is_told_in_requests() -> None:
    budget = budget_of(Counted(2_902_600, 2_882_688), 0.99)
    assert budget.allowed == pytest.approx(29_026)
    assert (budget.bad, round(budget.left)) == (19_912, 9_114)
    assert budget.remaining == pytest.approx(0.314, abs=0.001)


def test_a_young_objective_is_measured_by_the_whole_window() -> None:
    budget = budget_of(Counted(1_000, 995), 0.99, share=0.1)
    assert budget.allowed == pytest.approx(100)
    assert budget.remaining == pytest.approx(0.95)
    assert budget.even_pace == pytest.approx(0.9)


def test_of_no_requests_nothing_is_said() -> None:
    nothing = Counted()
    assert nothing.attained is None
    assert burn_rate(nothing, 0.99) is None
    assert budget_of(nothing, 0.99).remaining is None
    assert exhaustion(budget_of(nothing, 0.99), 5.0, window_seconds=DAY).seconds is None
    assert burn_down([nothing, nothing], 0.99) == [None, None]


def test_at_a_burn_rate_of_one_the_budget_lasts_the_window() -> None:
    whole = budget_of(Counted(10_000, 10_000), 0.99)
    assert exhaustion(whole, 2.0, window_seconds=30 * DAY).seconds == 15 * DAY
    assert exhaustion(whole, 1.0, window_seconds=30 * DAY).seconds is None
    spent = budget_of(Counted(10_000, 9_000), 0.99)
    assert exhaustion(spent, 0.5, window_seconds=30 * DAY).used_up


@pytest.mark.parametrize("target", [0.9, 0.95, 0.99, 0.995, 0.999, 0.9999])
@pytest.mark.parametrize("total", [10_000, 1_230_000, 10**9])
def test_a_budget_that_is_used_up_to_the_last_request_is_used_up(target: float, total: int) -> None:
    allowed = round(total * (1 - target))
    for bad, left in ((allowed - 1, 1.0), (allowed, 0.0), (allowed + 1, -1.0)):
        budget = budget_of(Counted(total, total - bad), target)
        assert budget.left == pytest.approx(left, abs=1e-6)
        assert budget.remaining is not None
        assert (budget.remaining > 0, budget.remaining < 0) == (left > 0, left < 0)


@pytest.mark.parametrize(
    ("long", "short", "burns"),
    [(15.0, 15.0, True), (15.0, 1.0, False), (1.0, 15.0, False), (15.0, None, False), (None, 15.0, None)],
)
def test_both_windows_must_burn(long: float | None, short: float | None, burns: bool | None) -> None:
    assert is_burning(long, short, 14.4) is burns


@pytest.mark.parametrize("kind", [Kind.TTFT, Kind.TPOT, Kind.QUEUE_WAIT])
def test_thresholds_are_bounds_of_the_histogram(kind: Kind) -> None:
    for place, bound in enumerate(BOUNDS[kind], start=1):
        assert place_of(kind, bound) == place


def test_another_threshold_names_its_neighbours() -> None:
    with pytest.raises(BadThreshold, match=r"0\.7 s is no bound.*0\.6 s or 0\.75 s"):
        place_of(Kind.TTFT, 0.7)
    with pytest.raises(BadThreshold, match=r"Take 60 s\.$"):
        place_of(Kind.TTFT, 100)


@pytest.mark.parametrize(("said", "meant"), [(0.1 + 0.2, 0.3), (20.00000001, 20.0), (0.3, 0.3)])
def test_a_threshold_that_is_a_bound_but_for_its_last_digits_is_that_bound(said: float, meant: float) -> None:
    assert bound_of(Kind.TTFT, said) == meant


@pytest.mark.parametrize(
    ("target", "fires"),
    [
        (0.99, [True, True, True]),
        (0.94, [True, True, True]),
        (0.93, [False, True, True]),
        (0.83, [False, False, True]),
        (0.5, [False, False, True]),
    ],
)
def test_a_pair_that_no_outage_reaches_cannot_fire(target: float, fires: list[bool]) -> None:
    assert [can_fire(pair, target) for pair in PAIRS] == fires
    assert burn_rate(Counted(100, 0), target) == most_burn(target)


@pytest.mark.shows("R146")
def test_every_tier_promises_a_p99_that_can_be_counted() -> None:
    found = {(one.tier, one.kind): one for one in presets()}
    assert {tier for tier, _ in found} == {"gold", "silver", "bronze"}
    for (_, kind), preset in found.items():
        if kind is Kind.TTFT:
            assert preset.target == 0.99
            assert place_of(kind, preset.threshold_seconds or 0) > 0


@given(st.lists(counts, min_size=1, max_size=60), targets)
def test_the_graph_ends_where_the_box_stands(series: list[Counted], target: float) -> None:
    budget = budget_of(sum(series, Counted()), target)
    last = burn_down(series, target)[-1]
    assert last == budget.remaining or last == pytest.approx(budget.remaining)


@given(st.lists(counts, min_size=1, max_size=60), targets)
def test_budgets_only_go_down(series: list[Counted], target: float) -> None:
    down = [left for left in burn_down(series, target) if left is not None]
    assert down == sorted(down, reverse=True)
    assert all(left <= 1 for left in down)


@given(st.lists(counts, min_size=1, max_size=60), st.integers(1, 20), targets)
def test_rolling_burn_is_the_burn_of_each_window(series: list[Counted], width: int, target: float) -> None:
    found = rolling_burn(series, width, target)
    for place, rate in enumerate(found):
        if place + 1 < width:
            assert rate is None
        else:
            expected = burn_rate(sum(series[place + 1 - width : place + 1], Counted()), target)
            assert (rate is None) == (expected is None)
            assert rate is None or rate == pytest.approx(expected)


@given(counts, targets, st.floats(0.001, 1.0))
def test_what_is_left_and_what_was_spent_are_the_whole(counted: Counted, target: float, share: float) -> None:
    budget = budget_of(counted, target, share=share)
    assert budget.left + budget.bad == pytest.approx(budget.allowed) or not counted.total
    assert budget.remaining is None or budget.remaining <= 1

"""The process's budget of retries."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.retry import FLOOR, WINDOW_SECONDS, RetryBudget


def spend(budget: RetryBudget, *, now: float, requests: int, tries: int) -> int:
    return sum(budget.spend(now=now, requests=requests) for _ in range(tries))


def test_a_quiet_process_has_a_few() -> None:
    assert spend(RetryBudget(0.2), now=0.0, requests=1, tries=100) == FLOOR


def test_a_busy_one_has_a_fifth_of_its_requests() -> None:
    assert spend(RetryBudget(0.2), now=0.0, requests=1000, tries=1000) == 200


def test_old_requests_and_retries_are_forgotten() -> None:
    budget = RetryBudget(0.2)
    assert spend(budget, now=0.0, requests=1000, tries=1000) == 200
    assert spend(budget, now=WINDOW_SECONDS - 1.0, requests=1000, tries=10) == 0
    assert spend(budget, now=WINDOW_SECONDS + 0.0, requests=1000, tries=100) == FLOOR
    assert spend(budget, now=2.0 * WINDOW_SECONDS, requests=2000, tries=1000) == 200


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=100))
def test_no_window_has_more_than_its_share(steps: list[tuple[float, int, int]]) -> None:
    budget, now, requests = RetryBudget(0.2), 0.0, 0
    history: list[tuple[int, int, int]] = []
    for seconds, arrived, tries in steps:
        now += seconds
        requests += arrived
        budget.observe(now=now, requests=requests)
        history.append((int(now), arrived, spend(budget, now=now, requests=requests, tries=tries)))
        recent = [row for row in history if row[0] > int(now) - WINDOW_SECONDS]
        # A window's share, and what an older window of more requests had already spent.
        most_requests = max(
            sum(count for second, count, _ in history if end - WINDOW_SECONDS < second <= end)
            for end in {row[0] for row in recent}
        )
        assert sum(retries for _, _, retries in recent) <= max(FLOOR, 0.2 * most_requests + 1)

from datetime import UTC, datetime, timedelta

import pytest

from core.clock import ManualClock, SystemClock


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(datetime(2026, 2, 1, tzinfo=UTC))
    assert (clock.monotonic(), clock.now()) == (0.0, datetime(2026, 2, 1, tzinfo=UTC))
    clock.advance(90.0)
    assert (clock.monotonic(), clock.now() - datetime(2026, 2, 1, tzinfo=UTC)) == (90.0, timedelta(seconds=90))


def test_manual_clock_refuses_to_step_back() -> None:
    with pytest.raises(ValueError, match="step back"):
        ManualClock().advance(-1)


def test_system_clock_is_aware_and_monotonic() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() >= first

"""How often a line of the log is due."""

from core.telemetry.seldom import Seldom


def test_one_line_a_second_is_due_and_says_how_many_were_not() -> None:
    seldom = Seldom(1.0)
    assert [seldom.due(now) for now in (100.0, 100.1, 100.999, 101.0, 101.5, 103.0, 105.0)] == [
        0, None, None, 2, None, 1, 0,
    ]  # fmt: skip

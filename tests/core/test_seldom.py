"""How often a line of the log is due."""

import logging

from core.telemetry.seldom import Seldom, SeldomFilter


def test_one_line_a_second_is_due_and_says_how_many_were_not() -> None:
    seldom = Seldom(1.0)
    assert [seldom.due(now) for now in (100.0, 100.1, 100.999, 101.0, 101.5, 103.0, 105.0)] == [
        0, None, None, 2, None, 1, 0,
    ]  # fmt: skip


def test_a_loggers_lines_are_held_back_cut_and_without_tracebacks() -> None:
    moments = iter((0.0, 0.1, 0.2, 1.5))
    seldom = SeldomFilter(1.0, now=lambda: next(moments))

    def line() -> logging.LogRecord:
        return logging.LogRecord("a", logging.ERROR, "f", 1, "Odd: %s" + "!" * 500, ("x",), (None, None, None))

    records = [line() for _ in range(4)]
    assert [seldom.filter(record) for record in records] == [True, False, False, True]
    told = records[0].getMessage()
    assert (told[:7], len(told), records[0].exc_info) == ("Odd: x!", 300, None)
    assert records[3].getMessage().endswith("! (2 more)")

"""JSON's encoders: whole states where something changed, tails that grow without doubles or silent gaps."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.base import Payload
from dashboard.live.encoders import JsonEncoder, Rows, RowsEncoder, Tail, TailEncoder

AT = datetime(2026, 1, 1, tzinfo=UTC)


def read(payload: Payload | None) -> Any:
    assert isinstance(payload, str)
    return json.loads(payload)


def test_a_state_is_sent_whole_and_then_only_when_it_changed() -> None:
    encoder = JsonEncoder("fleet", "fleet.v1")
    head = {"ch": "fleet", "v": "fleet.v1", "epoch": 5, "at": AT.timestamp()}
    assert read(encoder.keyframe({"a": 1}, epoch=5, seq=1, at=AT)) == {**head, "seq": 1, "a": 1}
    assert read(encoder.delta({"a": 1}, epoch=5, seq=2, at=AT)) == {**head, "seq": 2, "same": True}
    assert encoder.delta({"a": 2}, epoch=5, seq=3, at=AT) is None
    assert read(encoder.keyframe({}, epoch=5, seq=4, at=AT)) == {**head, "seq": 4}


def test_tails_say_when_rows_may_be_missing() -> None:
    encoder = TailEncoder("audit", "audit.v1", most=2)
    first = read(encoder.keyframe(Tail([("a", 1), ("b", 2)]), epoch=1, seq=1, at=AT))
    assert (first["rows"], first["gap"]) == ([1, 2], False)
    assert read(encoder.delta(Tail([("b", 2), ("c", 3)]), epoch=1, seq=2, at=AT))["more"] == [3]
    assert read(encoder.delta(Tail([("b", 2), ("c", 3)]), epoch=1, seq=3, at=AT))["more"] == []
    assert encoder.delta(Tail([("x", 8), ("y", 9)]), epoch=1, seq=4, at=AT) is None
    skipped = read(encoder.keyframe(Tail([("x", 8), ("y", 9)]), epoch=1, seq=5, at=AT))
    assert (skipped["rows"], skipped["gap"]) == ([8, 9], True)


def test_a_tail_that_begins_empty_grows() -> None:
    encoder = TailEncoder("audit", "audit.v1", most=2)
    assert read(encoder.keyframe(Tail([]), epoch=1, seq=1, at=AT))["rows"] == []
    assert read(encoder.delta(Tail([("a", 1)]), epoch=1, seq=2, at=AT))["more"] == [1]


def test_a_tail_that_begins_empty_and_gets_more_than_fits_says_so() -> None:
    encoder = TailEncoder("audit", "audit.v1", most=2)
    encoder.keyframe(Tail([]), epoch=1, seq=1, at=AT)
    full = Tail([("b", 2), ("c", 3)])
    assert encoder.delta(full, epoch=1, seq=2, at=AT) is None
    assert read(encoder.keyframe(full, epoch=1, seq=3, at=AT))["gap"]


@given(st.lists(st.integers(0, 9), max_size=20))
def test_viewers_of_a_tail_see_each_row_once_and_in_order(arrivals: list[int]) -> None:
    encoder = TailEncoder("reqlog", "reqlog.v1", most=5)
    rows: list[tuple[str, int]] = []
    shown: list[int] = read(encoder.keyframe(Tail([]), epoch=1, seq=0, at=AT))["rows"]
    for seq, new in enumerate(arrivals, start=1):
        rows += [(str(len(rows) + n), len(rows) + n) for n in range(new)]
        newest = Tail(rows[-5:])
        payload = encoder.delta(newest, epoch=1, seq=seq, at=AT)
        if payload is None:
            whole = read(encoder.keyframe(newest, epoch=1, seq=seq, at=AT))
            assert whole["gap"]
            shown = whole["rows"]
        else:
            shown += read(payload)["more"]
        assert shown == sorted(set(shown))
        assert shown[-5:] == [row for _, row in rows[-5:]]


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), min_size=1, max_size=12))
def test_rows_that_are_patched_are_those_that_were_read(states: list[dict[str, int]]) -> None:
    encoder = RowsEncoder("fleet", "fleet.v1")
    shown: dict[str, int] = read(encoder.keyframe(Rows(states[0]), epoch=1, seq=1, at=AT))["rows"]
    before = states[0]
    for seq, state in enumerate(states[1:], start=2):
        frame = read(encoder.delta(Rows(state), epoch=1, seq=seq, at=AT))
        assert all(before.get(key) != value for key, value in frame["set"].items())  # and nothing else
        shown = {key: value for key, value in (shown | frame["set"]).items() if key not in frame["gone"]}
        assert shown == state
        before = state

"""UUIDv7: ordered, unique, and readable back to its time."""

import os
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7, uuid7_datetime, uuid7_from


def test_values_of_one_process_strictly_increase() -> None:
    made = [uuid7() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_values_increase_when_the_wall_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = uuid7()
    monkeypatch.setattr("core.ids.time.time_ns", lambda: 0)
    assert uuid7() > before


def test_a_forked_child_draws_other_values_than_its_parent() -> None:
    uuid7()  # there is a stock of randomness now
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(uuid7().bytes for _ in range(100)))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    theirs = {drawn[i + 9 : i + 16] for i in range(0, len(drawn), 16)}
    assert len(theirs) == 100
    assert theirs.isdisjoint(uuid7().bytes[9:] for _ in range(1000))


@given(st.integers(0, 253402300799999), st.integers(0, 4095), st.integers(0, (1 << 64) - 1))
def test_time_reads_back_to_the_millisecond(unix_ms: int, sequence: int, random_bits: int) -> None:
    value = uuid7_from(unix_ms, sequence, random_bits)
    assert value.version == 7
    assert value.variant == "specified in RFC 4122"
    assert round(uuid7_datetime(value).timestamp() * 1000) == unix_ms


def test_smallest_value_of_a_time_sorts_before_all_of_that_millisecond() -> None:
    assert uuid7_from(1_700_000_000_000) <= uuid7_from(1_700_000_000_000, 1, 1)
    assert uuid7_datetime(uuid7_from(1_700_000_000_000)) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize(("unix_ms", "sequence"), [(-1, 0), (1 << 48, 0), (0, -1), (0, 1 << 12)])
def test_values_out_of_range_are_refused(unix_ms: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        uuid7_from(unix_ms, sequence)


def test_another_version_has_no_time() -> None:
    with pytest.raises(ValueError, match="not a UUIDv7"):
        uuid7_datetime(UUID(int=0))

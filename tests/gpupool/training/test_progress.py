"""What trainers tell, line by line: nothing twice, nothing of half a line, and nonsense left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool.training.progress import MESSAGE_LENGTH, Told, read_progress


def write(folder: Path, *lines: Any, end: bytes = b"\n") -> None:
    told = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    (folder / "progress.jsonl").write_bytes(b"\n".join(told) + end)


def test_each_line_is_read_once_and_half_a_line_waits(tmp_path: Path) -> None:
    write(tmp_path, {"type": "event", "message": "one"}, b'{"type": "event", "mess', end=b"")
    told, offset = read_progress(tmp_path, 0, ended=False)
    assert [line.message for line in told] == ["one"]
    assert read_progress(tmp_path, offset, ended=False) == ([], offset)
    write(tmp_path, {"type": "event", "message": "one"}, {"type": "event", "message": "two"})
    told, offset = read_progress(tmp_path, offset, ended=False)
    assert [line.message for line in told] == ["two"]
    assert read_progress(tmp_path, offset, ended=True) == ([], offset)


def test_at_the_end_the_last_line_needs_no_end(tmp_path: Path) -> None:
    write(tmp_path, {"type": "progress", "step": 3, "trained_tokens": 5}, end=b"")
    [line], _ = read_progress(tmp_path, 0, ended=True)
    assert line == Told("progress", step=3, trained_tokens=5)


def test_before_it_says_anything_there_is_nothing(tmp_path: Path) -> None:
    assert read_progress(tmp_path, 0, ended=True) == ([], 0)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello", b"[]", b"1", b"{}", {"type": 1}, {"type": "event"}, {"type": "event", "message": " "},
        {"type": "event", "message": 1}, b"[" * 10_000, b"\xff",
    ],
)  # fmt: skip
def test_nonsense_is_left_out(tmp_path: Path, nonsense: Any) -> None:
    write(tmp_path, nonsense, {"type": "event", "message": "still heard", "level": "shout"})
    told, _ = read_progress(tmp_path, 0, ended=False)
    assert told == [Told("message", "still heard")]


def test_measures_are_numbers_of_a_sane_size(tmp_path: Path) -> None:
    said = {"type": "metrics", "step": 2**40, "train_loss": 1.5, "loss": "low", "flag": True, "huge": 10**400}
    write(tmp_path, said, b'{"type": "metrics", "step": 1, "x": 1e999}')  # which no number is
    [line] = read_progress(tmp_path, 0, ended=False)[0]
    assert (line.step, line.data) == (None, {"step": 2**40, "train_loss": 1.5})


def test_messages_are_cut_and_rid_of_what_the_database_does_not_keep(tmp_path: Path) -> None:
    write(tmp_path, {"type": "event", "message": "\0a" + "x" * 5000})
    [line], _ = read_progress(tmp_path, 0, ended=False)
    assert line.message.startswith("ax")
    assert len(line.message) == MESSAGE_LENGTH


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), ended=st.booleans())
def test_whatever_is_said_is_got_through(tmp_path: Path, body: bytes, ended: bool) -> None:
    (tmp_path / "progress.jsonl").write_bytes(body)
    _, offset = read_progress(tmp_path, 0, ended=ended)
    assert offset <= len(body)
    if ended:
        assert offset == len(body)

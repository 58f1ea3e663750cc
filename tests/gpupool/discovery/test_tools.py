"""Programs of the machine's own: their answer, their failures, and that none keeps us waiting."""

import time
from pathlib import Path

import pytest

from gpupool.discovery.tools import Answer, ToolAway, ToolFailed, ask
from tests.waiting import is_gone, wait_until

ENV = {"PATH": "/usr/bin:/bin"}


async def test_how_it_ended_and_what_it_printed() -> None:
    both = ("sh", "-c", "echo out; echo err >&2; exit 14")
    assert await ask(both, env=ENV, seconds=30) == Answer(14, "out\n")
    assert sorted((await ask(both, env=ENV, seconds=30, errors=True)).text.split()) == ["err", "out"]


async def test_what_is_not_there_and_what_cannot_be_run_are_two_things() -> None:
    with pytest.raises(ToolAway, match="was not found"):
        await ask(("no-such-tool", "-q"), env=ENV, seconds=30)
    with pytest.raises(ToolFailed, match="cannot be run") as failed:
        await ask(("/etc/passwd",), env=ENV, seconds=30)
    assert not isinstance(failed.value, ToolAway)


async def test_one_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    started = time.monotonic()
    with pytest.raises(ToolAway, match=r"did not answer within 4 s and was killed"):  # by then it has told its child
        await ask(("sh", "-c", f"sleep 60 & echo $! > {pid}; wait"), env=ENV, seconds=4.0)
    assert time.monotonic() - started < 20
    child = int(pid.read_text())
    wait_until(lambda: is_gone(child), "the tool's own child to end")


async def test_an_answer_without_end_is_cut_off() -> None:
    with pytest.raises(ToolFailed, match="printed more than 1000 bytes"):
        await ask(("yes",), env=ENV, seconds=30, most_bytes=1000)

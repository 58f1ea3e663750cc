"""The end of the logs that somebody reads: told when they change, again now and then, and in turn."""

from pathlib import Path
from uuid import UUID, uuid4

from core.clock import ManualClock
from gpupool.agent.log_tail import MOST_AT_ONCE, LogTails


def _log(folder: Path, instance_id: UUID, text: str) -> None:
    (folder / f"engine-{instance_id}.log").write_text(text)


def test_a_log_is_told_when_it_is_asked_for_and_when_it_changes(tmp_path: Path) -> None:
    clock, one = ManualClock(), uuid4()
    tails = LogTails(tmp_path, clock)
    _log(tmp_path, one, "first\n")
    assert tails.to_tell() == []
    assert tails.set_wanted([one])
    assert [fact.text for fact in tails.to_tell()] == ["first"]
    assert not tails.set_wanted([one])
    assert tails.to_tell() == []
    _log(tmp_path, one, "first\nsecond \x1b[1mbold\x1b[0m\n")
    assert [fact.text for fact in tails.to_tell()] == ["first\nsecond bold"]
    clock.advance(10.0)
    assert len(tails.to_tell()) == 1  # the report with it may have been lost
    tails.set_wanted([])
    assert tails.to_tell() == []


def test_of_a_large_log_the_end_is_read(tmp_path: Path) -> None:
    one = uuid4()
    tails = LogTails(tmp_path, ManualClock())
    tails.set_wanted([one])
    _log(tmp_path, one, "".join(f"line {number:06d} {'x' * 80}\n" for number in range(50_000)))
    (fact,) = tails.to_tell()
    assert fact.cut
    assert fact.text.split("\n")[-1].startswith("line 049999")
    assert len(fact.text.split("\n")) == 200


def test_a_log_that_is_not_there_is_told_as_empty(tmp_path: Path) -> None:
    tails = LogTails(tmp_path, ManualClock())
    tails.set_wanted([uuid4()])
    assert [fact.text for fact in tails.to_tell()] == [""]


def test_many_logs_take_turns(tmp_path: Path) -> None:
    clock, ids = ManualClock(), [uuid4() for _ in range(3 * MOST_AT_ONCE)]
    tails = LogTails(tmp_path, clock)
    for one in ids:
        _log(tmp_path, one, str(one))
    tails.set_wanted(ids)
    told: list[str] = []
    for _ in range(3):
        facts = tails.to_tell()
        assert len(facts) == MOST_AT_ONCE
        told += [fact.text for fact in facts]
        clock.advance(1.0)
    assert sorted(told) == sorted(map(str, ids))

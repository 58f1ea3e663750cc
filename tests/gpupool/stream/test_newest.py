"""What of a report that was never written goes on in the one that overtook it."""

from uuid import uuid4

from msgspec.structs import replace

from gpupool.stream.messages import EventFact, LogFact, Observed
from gpupool.stream.newest import overtake


def _report(sequence: int, *, events: tuple[int, ...] = (), mps: bool | None = None) -> Observed:
    return Observed(
        sequence=sequence,
        devices=[],
        instances=[],
        events=[EventFact(sequence=number, source="nvml", kind="xid", at=1.0) for number in events],
        capabilities={} if mps is None else {"mps": {"available": mps}},
    )


def test_the_first_waits_as_it_is() -> None:
    assert overtake(None, _report(1)) == _report(1)


def test_the_newer_one_takes_the_place_of_the_older() -> None:
    assert overtake(_report(1), _report(2)) == _report(2)


def test_what_is_told_now_and_then_alone_is_told_on() -> None:
    assert overtake(_report(1, events=(1, 2), mps=True), _report(2)) == _report(2, events=(1, 2), mps=True)


def test_what_is_told_anew_replaces_what_was_told_before() -> None:
    waiting = _report(1, events=(1, 2), mps=True)
    newer = _report(2, events=(1, 2, 3), mps=False)
    assert overtake(waiting, newer) == newer


def test_logs_are_told_on_each_as_it_was_told_last() -> None:
    one, two = uuid4(), uuid4()
    waiting = replace(_report(1), logs=[LogFact(instance_id=one, text="old"), LogFact(instance_id=two, text="kept")])
    newer = replace(_report(2), logs=[LogFact(instance_id=one, text="new")])
    assert {fact.instance_id: fact.text for fact in overtake(waiting, newer).logs} == {one: "new", two: "kept"}

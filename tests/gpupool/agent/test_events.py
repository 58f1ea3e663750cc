"""Events are numbered over an agent's restarts, told until they are kept, and dropped only with a count."""

from pathlib import Path

import pytest

from gpupool.agent.events import DROPPED, MOST_TOLD, RETELL_SECONDS, EventBuffer
from gpupool.agent.twins import Sighting, Twins
from gpupool.discovery.base import Noticed


def xid(code: int, *, at: float = 1.0) -> Noticed:
    return Noticed(source="nvml", kind="xid", at=at, stable_id="GPU-1", code=code)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.json"


def opened(path: Path, *, boot: str = "first", most: int = 2000, kept: int | None = 0) -> EventBuffer:
    buffer = EventBuffer(path, boot_id=boot, most=most)
    buffer.load()
    if kept is not None:
        buffer.acknowledge(kept)
    return buffer


def codes(buffer: EventBuffer, *, now: float = 0.0) -> list[tuple[int, int | None]]:
    return [(event.sequence, event.code) for event in buffer.to_tell(now=now)]


@pytest.mark.shows("P24")
def test_the_same_error_twice_is_two_events(path: Path) -> None:
    buffer = opened(path)
    buffer.add([xid(79), xid(79)])
    assert codes(buffer) == [(1, 79), (2, 79)]


def test_numbers_go_on_after_a_restart_and_what_is_not_kept_is_told_again(path: Path) -> None:
    first = opened(path)
    first.add([xid(31), xid(48), xid(63)])
    first.to_tell(now=0.0)
    first.acknowledge(1)
    second = opened(path, kept=1)
    second.add([xid(79)])
    assert codes(second) == [(2, 48), (3, 63), (4, 79)]


def test_nothing_is_told_before_it_is_known_what_is_kept(path: Path) -> None:
    buffer = opened(path, kept=None)
    buffer.add([xid(79)])
    assert codes(buffer) == []
    buffer.acknowledge(0)
    assert codes(buffer) == [(1, 79)]


def test_an_agent_that_lost_its_folder_gives_no_number_a_second_time(path: Path) -> None:
    buffer = opened(path, kept=None)
    buffer.add([xid(79), xid(94)])
    assert buffer.acknowledge(40)
    assert codes(buffer) == [(41, 79), (42, 94)]


def test_events_of_an_earlier_boot_get_new_numbers_and_say_so(path: Path) -> None:
    first = opened(path)
    first.add([xid(79), xid(119)])
    first.to_tell(now=0.0)
    second = opened(path, boot="second")
    second.add([xid(31)])
    told = second.to_tell(now=0.0)
    assert [(event.sequence, event.code, event.data) for event in told] == [
        (1, 79, {"boot_id": "first"}),
        (2, 119, {"boot_id": "first"}),
        (3, 31, {}),
    ]


def test_they_are_told_again_after_a_while_and_with_every_new_stream(path: Path) -> None:
    buffer = opened(path)
    buffer.add([xid(79)])
    assert codes(buffer, now=10.0) == [(1, 79)]
    assert codes(buffer, now=10.1) == []
    assert codes(buffer, now=10.0 + RETELL_SECONDS) == [(1, 79)]
    buffer.retell()
    assert codes(buffer, now=12.1) == [(1, 79)]
    buffer.add([xid(94)])
    assert codes(buffer, now=12.2) == [(1, 79), (2, 94)]  # from the oldest on
    assert not buffer.acknowledge(2)
    assert codes(buffer, now=99.0) == []


def test_no_report_holds_more_than_is_taken(path: Path) -> None:
    buffer = opened(path)
    buffer.add(xid(n) for n in range(1, MOST_TOLD + 50))
    assert len(buffer.to_tell(now=0.0)) == MOST_TOLD
    assert buffer.acknowledge(MOST_TOLD)
    assert len(buffer.to_tell(now=0.0)) == 49


def test_the_oldest_are_dropped_with_their_count(path: Path) -> None:
    buffer = opened(path, most=4)
    buffer.add(xid(n) for n in range(1, 11))
    told = buffer.to_tell(now=0.0)
    assert len(told) == 4
    assert (told[0].kind, told[0].sequence, told[0].data["count"]) == (DROPPED, 7, "7")
    assert [event.code for event in told[1:]] == [8, 9, 10]


def test_a_file_that_cannot_be_read_or_written_silences_nobody(tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"{")
    buffer = opened(path)
    buffer.add([xid(79)])
    assert codes(buffer) == [(1, 79)]
    nowhere = opened(tmp_path / "missing" / "events.json")
    nowhere.add([xid(79)])
    assert codes(nowhere) == [(1, 79)]


def test_what_a_source_says_is_cut_to_what_is_taken(path: Path) -> None:
    buffer = opened(path)
    buffer.add(
        [Noticed(source="s" * 40, kind="k" * 40, at=-1.0, text="a\x00" * 2000, data={"n" * 300: "v\x00" * 5000})]
    )
    (event,) = buffer.to_tell(now=0.0)
    assert (len(event.source), len(event.kind), event.at) == (16, 24, 0.0)
    assert len(event.text) <= 2000
    assert all("\x00" not in text for text in (event.text, *event.data.values()))


def seen(source: str, at: float, *, code: int = 79, device: str = "GPU-1") -> Sighting:
    return Sighting(source, device, code, at)


@pytest.mark.shows("P24")
def test_two_sources_that_tell_of_one_error_tell_of_one() -> None:
    twins = Twins()
    assert not twins.is_second(seen("nvml", 10.0))
    assert twins.is_second(seen("kernel_log", 10.4))
    assert not twins.is_second(seen("kernel_log", 10.5))  # its repeat, which NVML has not told of yet
    assert twins.is_second(seen("nvml", 10.9))


@pytest.mark.shows("P24")
def test_true_repeats_stay() -> None:
    twins = Twins()
    said = [seen("kernel_log", 10.0 + n / 10) for n in range(3)] + [seen("nvml", 11.0 + n / 10) for n in range(3)]
    assert [twins.is_second(one) for one in said] == [False, False, False, True, True, True]
    assert not twins.is_second(seen("nvml", 11.6))


@pytest.mark.parametrize("other", [{"code": 31}, {"device": "GPU-2"}, {"at": 16.0}])
def test_other_errors_are_others(other: dict[str, object]) -> None:
    twins = Twins()
    twins.is_second(seen("nvml", 10.0))
    values = {"at": 10.0, **other}
    assert not twins.is_second(seen("kernel_log", **values))  # type: ignore[arg-type]  # of the parameters above

"""The ring: whatever is lost, doubled or out of order, a viewer ends with the leader's newest state."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.ring import Frame, Position, Ring, Taken, unpack


def key(seq: int, *, fence: int = 1, epoch: int = 1, payload: bytes = b"k") -> Frame:
    return Frame(fence, epoch, seq, payload, key=True)


def delta(seq: int, *, fence: int = 1, epoch: int = 1, payload: bytes = b"d") -> Frame:
    return Frame(fence, epoch, seq, payload)


def test_deltas_follow_a_keyframe_one_by_one() -> None:
    ring = Ring()
    assert ring.take(delta(1)) is Taken.GAP
    assert ring.take(key(2)) is Taken.NEWS
    assert ring.take(delta(3)) is Taken.NEWS
    assert ring.take(delta(3)) is Taken.OLD
    assert ring.take(key(2)) is Taken.OLD
    assert ring.take(delta(5)) is Taken.GAP
    assert ring.take(delta(4, epoch=2)) is Taken.GAP
    assert ring.take(delta(4)) is Taken.NEWS
    assert ring.position == (1, 1, 4)


def test_a_newer_leaders_keyframe_ends_the_older_ones_frames() -> None:
    ring = Ring()
    ring.take(key(90, fence=1, epoch=100))
    assert ring.take(delta(1, fence=2, epoch=50)) is Taken.GAP
    assert ring.take(key(1, fence=2, epoch=50)) is Taken.NEWS
    assert ring.take(key(91, fence=1, epoch=101)) is Taken.OLD
    assert ring.take(delta(2, fence=1, epoch=100)) is Taken.OLD


def test_a_viewer_is_given_what_comes_next_and_skips_when_it_missed_too_much() -> None:
    ring = Ring()
    for frame in (key(1), delta(2), delta(3)):
        ring.take(frame)
    assert [frame.seq for frame in walk(ring, None)] == [1, 2, 3]
    assert [frame.seq for frame in walk(ring, (1, 1, 2))] == [3]
    assert ring.next_after((1, 1, 3)) is None
    for frame in (key(4), delta(5)):
        ring.take(frame)
    assert [frame.seq for frame in walk(ring, (1, 1, 2))] == [4, 5]
    assert [frame.seq for frame in walk(ring, (1, 1, 4))] == [5]
    ring.take(key(1, fence=2))
    assert [frame.position for frame in walk(ring, (1, 1, 5))] == [(2, 1, 1)]


def walk(ring: Ring, position: Position | None) -> list[Frame]:
    frames = []
    while (frame := ring.next_after(position)) is not None:
        frames.append(frame)
        position = frame.position
    return frames


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", "", '{"a":"é"}'])
@pytest.mark.parametrize(("is_key", "trouble"), [(False, False), (True, False), (False, True)])
def test_records_give_back_the_frame(payload: bytes | str, is_key: bool, trouble: bool) -> None:
    frame = Frame(2**53, 2**32 - 1, 7, payload, key=is_key, trouble=trouble)
    assert unpack(frame.pack()) == frame


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record_are_told_apart(record: bytes) -> None:
    frame = unpack(record)
    assert frame is None or frame.pack() == record


@pytest.mark.parametrize(
    ("payload", "wire"), [('{"ch":"a"}', '{"n":7,"ch":"a"}'), (b"\x01\x02", b"\x07\x01\x02"), (b"", b"\x07")]
)
def test_a_frame_goes_out_under_the_clients_number(payload: bytes | str, wire: bytes | str) -> None:
    frame = Frame(1, 1, 1, payload, key=True)
    assert frame.wire(7) == wire
    assert frame.wire(7) is frame.wire(7)  # made once for all


def test_few_forms_of_a_frame_are_kept() -> None:
    frame = Frame(1, 1, 1, b"x" * 1000, key=True)
    for number in range(1, 256):
        frame.wire(number)
    assert len(frame._wires) <= 4


@dataclass
class Leader:
    """Counts up; keyframes carry the sum, deltas what to add."""

    fence: int
    epoch: int
    seq: int = 0
    total: int = 0
    keyframe: Frame | None = None
    deltas: list[Frame] = field(default_factory=list)

    def publish(self, amount: int, *, as_keyframe: bool, new_epoch: bool) -> Frame:
        self.total += amount
        self.seq += 1
        if new_epoch:
            self.epoch += 1
        if as_keyframe or new_epoch or self.keyframe is None:
            self.keyframe = key(self.seq, fence=self.fence, epoch=self.epoch, payload=b"%d" % self.total)
            self.deltas = []
            return self.keyframe
        frame = delta(self.seq, fence=self.fence, epoch=self.epoch, payload=b"%d" % amount)
        self.deltas.append(frame)
        return frame


@dataclass
class Decoder:
    """What a page makes of frames; fails on one that does not follow."""

    position: Position | None = None
    total: int = 0

    def show(self, frame: Frame) -> None:
        if frame.key:
            self.total = int(frame.payload)
        else:
            assert self.position is not None
            fence, epoch, seq = self.position
            assert frame.position == (fence, epoch, seq + 1)
            self.total += int(frame.payload)
        assert self.position is None or frame.position > self.position
        self.position = frame.position


STEP = st.tuples(
    st.integers(-9, 9),  # what is added
    st.booleans(),  # a keyframe
    st.integers(0, 9).map(lambda n: n == 0),  # a new epoch
    st.sampled_from(["comes", "comes", "comes", "lost", "twice", "late"]),
    st.integers(0, 9).map(lambda n: n == 0),  # another process takes the lead
    st.booleans(),  # the viewer takes what there is
)


@given(st.lists(STEP, max_size=60), st.integers(0, 2**32))
def test_loss_doubles_reordering_and_two_leaders_in_turn_never_show_what_is_wrong(
    steps: list[tuple[int, bool, bool, str, bool, bool]], seed: int
) -> None:
    rng = random.Random(seed)
    leader = Leader(fence=1, epoch=1000)
    ring, page = Ring(), Decoder()
    late: list[Frame] = []
    states: dict[Position, int] = {}

    def look() -> None:
        while (frame := ring.next_after(page.position)) is not None:
            page.show(frame)
        if page.position is not None:
            assert page.total == states[page.position]

    for amount, as_keyframe, new_epoch, fate, turn, takes in steps:
        if turn:  # the new leader reads the same pool: its total goes on, its numbers begin anew
            leader = Leader(fence=leader.fence + 1, epoch=rng.randrange(1, 2000), total=leader.total)
        frame = leader.publish(amount, as_keyframe=as_keyframe, new_epoch=new_epoch)
        states[frame.position] = leader.total
        arriving = {"comes": [frame], "lost": [], "twice": [frame, frame], "late": []}[fate]
        if fate == "late":
            late.append(frame)
        elif late and rng.random() < 0.5:
            arriving.insert(rng.randrange(len(arriving) + 1), late.pop(rng.randrange(len(late))))
        for one in arriving:
            if ring.take(one) is Taken.GAP:  # read again, perhaps only after more has come
                ring.load(leader.keyframe, leader.deltas)
        if takes:
            look()
    if leader.keyframe is not None:
        ring.load(leader.keyframe, leader.deltas)
        look()
        assert page.total == leader.total


def test_a_ring_that_forgot_takes_what_was_old() -> None:
    ring = Ring()
    ring.take(key(5, fence=9))
    assert ring.take(key(1, fence=3)) is Taken.OLD
    ring.forget()
    assert ring.take(key(1, fence=3)) is Taken.NEWS
    assert [frame.position for frame in walk(ring, (9, 1, 5))] == [(3, 1, 1)]

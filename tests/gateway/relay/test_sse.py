"""Splitting event streams at every boundary."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.sse import EventSplitter, EventTooLarge, event_fields, with_data

line_ends = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Events with one kind of line end, as a server writes them."""
    end = draw(line_ends)
    line = st.sampled_from(["data: x", "data:", ": ping", "event: error", "id: 1", 'data: {"a": "é世🙂"}', "data: \\n"])
    events = draw(st.lists(st.lists(line, min_size=1, max_size=3), max_size=5))
    return [(end.join(lines) + end + end).encode() for lines in events]


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.shows("G9", "G10")
@given(streams(), st.lists(st.integers(0, 1000), max_size=12))
def test_events_are_whole_wherever_the_network_cuts(events: list[bytes], places: list[int]) -> None:
    splitter = EventSplitter()
    found = [event for piece in cut(b"".join(events), places) for event in splitter.feed(piece)]
    assert found == events
    assert splitter.rest == b""


@pytest.mark.shows("G9")
@given(st.text("ad:\r\n ", max_size=40).map(str.encode), st.lists(st.integers(0, 1000), max_size=8))
def test_no_byte_is_lost_or_made(whole: bytes, places: list[int]) -> None:
    """Also for mixtures of line ends that nobody should send: the same events' data come out however it is cut."""
    once, cut_up = EventSplitter(), EventSplitter()
    expected = once.feed(whole)
    found = [event for piece in cut(whole, places) for event in cut_up.feed(piece)]
    assert b"".join(found) + cut_up.rest == whole == b"".join(expected) + once.rest
    assert data_of(found) == data_of(expected)


def data_of(events: list[bytes]) -> list[bytes]:
    return [data for data in (event_fields(event)[1] for event in events) if data is not None]


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        splitter = EventSplitter()
        assert splitter.feed(b"data: a" + end) == []
        assert splitter.feed(end) == [b"data: a" + end + end]


def test_long_events_are_bounded_and_linear() -> None:
    splitter = EventSplitter(limit=1000)
    assert splitter.feed(b"data: " + b"x" * 900) == []
    with pytest.raises(EventTooLarge):
        splitter.feed(b"x" * 200)


@pytest.mark.parametrize(
    ("event", "name", "data"),
    [
        (b"data: a\n\n", b"", b"a"),
        (b"data:a\n\n", b"", b"a"),
        (b"data:  a\n\n", b"", b" a"),
        (b"data\n\n", b"", b""),
        (b"data: a\ndata: b\n\n", b"", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"", b"a\nb"),
        (b"event: error\rdata: a\r\r", b"error", b"a"),
        (b": comment\n\n", b"", None),
        (b": c\nid: 1\ndata: a\nretry: 5\n\n", b"", b"a"),
        (b"\xef\xbb\xbfdata: a\n\n", b"", b"a"),
        (b"\n\n", b"", None),
        (b"database: a\n\n", b"", None),
    ],
)
def test_fields_of_an_event(event: bytes, name: bytes, data: bytes | None) -> None:
    assert event_fields(event) == (name, data)


def test_other_data_keeps_the_other_lines() -> None:
    event = b'event: x\r\ndata: {"a":\r\ndata: 1}\r\nid: 3\r\n\r\n'
    changed = with_data(event, b'{"a":\n2}')
    assert event_fields(changed) == (b"x", b'{"a":\n2}')
    assert re.search(rb"^id: 3$", changed, re.MULTILINE)
